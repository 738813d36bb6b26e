// One creator per contract row.
#pragma once

#include "NvInferRuntime.h"
#include "op_row.h"

namespace tblock
{
class Creator final : public nvinfer1::IPluginCreatorV3One
{
public:
    // `op` indexes contract::kRows.
    explicit Creator(int32_t op) noexcept;

    nvinfer1::IPluginV3* createPlugin(char const* name, nvinfer1::PluginFieldCollection const* fields,
        nvinfer1::TensorRTPhase phase) noexcept override;
    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override;
    char const* getPluginName() const noexcept override;
    char const* getPluginVersion() const noexcept override;
    char const* getPluginNamespace() const noexcept override;

private:
    OpRow const& mRow;
    int32_t mOp;
    nvinfer1::PluginField mFields[kMaxFields];
    nvinfer1::PluginFieldCollection mCollection{};
};
} // namespace tblock

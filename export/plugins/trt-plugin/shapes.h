// Checks of concrete shapes and types against a contract row.
#pragma once

#include "NvInferRuntime.h"
#include "op_row.h"

#include <string>

namespace tblock
{
// Index into the variant table's dtypes, or -1.
int32_t dtypeOf(nvinfer1::DataType type) noexcept;

struct Extent
{
    int64_t rows;
    int64_t width;
};

// Rows and width of input 0; the problem in `error`, or it is empty.
Extent extentOf(nvinfer1::Dims const& dims, std::string& error);

// What is wrong with the tensors of a call, or an empty text.
std::string checkTensors(
    OpRow const& row, int32_t op, nvinfer1::PluginTensorDesc const* in, nvinfer1::PluginTensorDesc const* out);
} // namespace tblock

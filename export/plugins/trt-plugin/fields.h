// The attribute values of one plugin: read from TensorRT's field collection, checked, and written back unchanged.
#pragma once

#include "NvInferRuntime.h"
#include "op_row.h"

#include <string>

namespace tblock
{
// TensorRT's type of a field.
nvinfer1::PluginFieldType typeOf(FieldRow const& row) noexcept;

struct FieldValues
{
    FieldValue values[kMaxFields] = {};

    // Fills `values` in the row's order. An empty text, or what is wrong, naming plugin and field.
    std::string read(OpRow const& row, nvinfer1::PluginFieldCollection const* fields);

    // Points `target` at `values`, which must outlive it.
    void write(OpRow const& row, nvinfer1::PluginField* target) const noexcept;
};
} // namespace tblock

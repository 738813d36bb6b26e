#include "shapes.h"
#include "kernels.h"

namespace tblock
{
namespace
{
using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::PluginTensorDesc;

std::string text(Dims const& dims)
{
    std::string joined = "[";
    for (int32_t i = 0; i < dims.nbDims; ++i)
    {
        joined += (i > 0 ? ", " : "") + std::to_string(dims.d[i]);
    }
    return joined + "]";
}

bool equal(Dims const& a, Dims const& b)
{
    bool same = a.nbDims == b.nbDims;
    for (int32_t i = 0; same && i < a.nbDims; ++i)
    {
        same = a.d[i] == b.d[i];
    }
    return same;
}

std::string checkOne(PortRow const& port, PluginTensorDesc const& desc, PluginTensorDesc const& first)
{
    if (desc.type != first.type)
    {
        return std::string{port.name} + ": dtype differs from input 0";
    }
    if (desc.format != nvinfer1::TensorFormat::kLINEAR)
    {
        return std::string{port.name} + ": format must be linear";
    }
    Dims wanted = first.dims;
    if (port.shape == PortShape::kVector)
    {
        wanted.d[0] = first.dims.d[first.dims.nbDims - 1];
        wanted.nbDims = 1;
    }
    if (!equal(desc.dims, wanted))
    {
        return std::string{port.name} + ": shape " + text(desc.dims) + ", wanted " + text(wanted);
    }
    return {};
}
} // namespace

int32_t dtypeOf(DataType type) noexcept
{
    switch (type)
    {
    case DataType::kFLOAT: return 0;
    case DataType::kHALF: return 1;
    case DataType::kBF16: return 2;
    default: return -1;
    }
}

Extent extentOf(Dims const& dims, std::string& error)
{
    Extent extent{1, 0};
    if (dims.nbDims < 1 || dims.nbDims > Dims::MAX_DIMS)
    {
        error = "rank " + std::to_string(dims.nbDims) + ": must be 1 to " + std::to_string(Dims::MAX_DIMS);
        return extent;
    }
    extent.width = dims.d[dims.nbDims - 1];
    int64_t elements = extent.width;
    for (int32_t i = 0; i < dims.nbDims - 1; ++i)
    {
        if (dims.d[i] < 0 || __builtin_mul_overflow(extent.rows, dims.d[i], &extent.rows))
        {
            error = "shape " + text(dims) + " is out of range";
            return extent;
        }
    }
    if (__builtin_mul_overflow(extent.rows, extent.width, &elements) || elements > INT64_MAX / 16)
    {
        error = "shape " + text(dims) + " is out of range";
    }
    return extent;
}

std::string checkTensors(OpRow const& row, int32_t op, PluginTensorDesc const* in, PluginTensorDesc const* out)
{
    if (dtypeOf(in[0].type) < 0)
    {
        return std::string{row.inputs[0].name} + ": dtype must be float32, float16 or bfloat16";
    }
    std::string problem;
    Extent const extent = extentOf(in[0].dims, problem);
    if (problem.empty())
    {
        problem = checkWidth(op, extent.width);
    }
    if (!problem.empty())
    {
        return std::string{row.inputs[0].name} + ": " + problem;
    }
    for (int32_t i = 0; i < row.inputCount && problem.empty(); ++i)
    {
        problem = checkOne(row.inputs[i], in[i], in[0]);
    }
    for (int32_t i = 0; i < row.outputCount && problem.empty(); ++i)
    {
        problem = checkOne(row.outputs[i], out[i], in[0]);
    }
    return problem;
}
} // namespace tblock

#include "plugin.h"
#include "contract.h"
#include "log.h"
#include "shapes.h"

#include <new>

namespace tblock
{
using namespace nvinfer1;

namespace
{
constexpr int32_t kOk = 0;
constexpr int32_t kFailed = 1;
} // namespace

Plugin::Plugin(int32_t op, FieldValues const& fields) noexcept
    : mRow{*contract::kRows[op]}
    , mOp{op}
    , mFields{fields}
{
    mFields.write(mRow, mSerialized);
    mCollection = PluginFieldCollection{mRow.fieldCount, mSerialized};
}

int32_t Plugin::fail(std::string const& message) const noexcept
{
    log(Severity::kERROR, message);
    return kFailed;
}

int32_t Plugin::checkCounts(int32_t nbInputs, int32_t nbOutputs) const noexcept
try
{
    if (nbInputs == mRow.inputCount && nbOutputs == mRow.outputCount)
    {
        return kOk;
    }
    return fail(std::string{mRow.pluginName} + ": " + std::to_string(nbInputs) + " inputs and "
        + std::to_string(nbOutputs) + " outputs, wanted " + std::to_string(mRow.inputCount) + " and "
        + std::to_string(mRow.outputCount));
}
catch (...)
{
    return kFailed;
}

IPluginCapability* Plugin::getCapabilityInterface(PluginCapabilityType type) noexcept
{
    switch (type)
    {
    case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
    case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
    case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

Plugin* Plugin::clone() noexcept
{
    auto* const copy = new (std::nothrow) Plugin{mOp, mFields};
    if (copy != nullptr)
    {
        copy->mKernels = mKernels;
    }
    return copy;
}

char const* Plugin::getPluginName() const noexcept
{
    return mRow.pluginName;
}

char const* Plugin::getPluginVersion() const noexcept
{
    return mRow.version;
}

char const* Plugin::getPluginNamespace() const noexcept
{
    return contract::kNamespace;
}

int32_t Plugin::getNbOutputs() const noexcept
{
    return mRow.outputCount;
}

int32_t Plugin::getOutputDataTypes(
    DataType* outputTypes, int32_t nbOutputs, DataType const* inputTypes, int32_t nbInputs) const noexcept
{
    if (checkCounts(nbInputs, nbOutputs) != kOk)
    {
        return kFailed;
    }
    for (int32_t i = 0; i < nbOutputs; ++i)
    {
        outputTypes[i] = inputTypes[0];
    }
    return kOk;
}

int32_t Plugin::getOutputShapes(DimsExprs const* inputs, int32_t nbInputs, DimsExprs const*, int32_t nbShapeInputs,
    DimsExprs* outputs, int32_t nbOutputs, IExprBuilder&) noexcept
try
{
    if (checkCounts(nbInputs, nbOutputs) != kOk || nbShapeInputs != 0)
    {
        return kFailed;
    }
    for (int32_t i = 0; i < nbInputs; ++i)
    {
        bool const vector = mRow.inputs[i].shape == PortShape::kVector;
        bool const right = vector ? inputs[i].nbDims == 1 : inputs[i].nbDims == inputs[0].nbDims && inputs[0].nbDims > 0;
        if (!right)
        {
            return fail(std::string{mRow.pluginName} + ": " + mRow.inputs[i].name + " has rank "
                + std::to_string(inputs[i].nbDims) + ", wanted "
                + (vector ? "1" : "that of input 0, " + std::to_string(inputs[0].nbDims) + ", above 0"));
        }
    }
    for (int32_t i = 0; i < nbOutputs; ++i)
    {
        outputs[i] = inputs[0];
    }
    return kOk;
}
catch (...)
{
    return kFailed;
}

bool Plugin::supportsFormatCombination(
    int32_t pos, DynamicPluginTensorDesc const* inOut, int32_t nbInputs, int32_t nbOutputs) noexcept
{
    if (checkCounts(nbInputs, nbOutputs) != kOk || pos < 0 || pos >= nbInputs + nbOutputs)
    {
        return false;
    }
    PluginTensorDesc const& desc = inOut[pos].desc;
    return desc.format == TensorFormat::kLINEAR && dtypeOf(desc.type) >= 0 && desc.type == inOut[0].desc.type;
}

int32_t Plugin::configurePlugin(DynamicPluginTensorDesc const* in, int32_t nbInputs, DynamicPluginTensorDesc const* out,
    int32_t nbOutputs) noexcept
try
{
    if (checkCounts(nbInputs, nbOutputs) != kOk)
    {
        return kFailed;
    }
    // The widest shape of the profile stands for all: limits only bound from above.
    PluginTensorDesc widest[kMaxTensors];
    for (int32_t i = 0; i < nbInputs + nbOutputs; ++i)
    {
        DynamicPluginTensorDesc const& dynamic = i < nbInputs ? in[i] : out[i - nbInputs];
        widest[i] = dynamic.desc;
        widest[i].dims = dynamic.max;
    }
    std::string const problem = checkTensors(mRow, mOp, widest, widest + nbInputs);
    return problem.empty() ? kOk : fail(std::string{mRow.pluginName} + ": " + problem);
}
catch (...)
{
    return kFailed;
}

size_t Plugin::getWorkspaceSize(
    DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*, int32_t) const noexcept
{
    return 0;
}

int32_t Plugin::onShapeChange(
    PluginTensorDesc const* in, int32_t nbInputs, PluginTensorDesc const* out, int32_t nbOutputs) noexcept
try
{
    if (checkCounts(nbInputs, nbOutputs) != kOk)
    {
        return kFailed;
    }
    std::string const problem = checkTensors(mRow, mOp, in, out);
    return problem.empty() ? kOk : fail(std::string{mRow.pluginName} + ": " + problem);
}
catch (...)
{
    return kFailed;
}

int32_t Plugin::enqueue(PluginTensorDesc const* inputDesc, PluginTensorDesc const*, void const* const* inputs,
    void* const* outputs, void*, cudaStream_t stream) noexcept
try
{
    std::string error;
    if (mKernels == nullptr)
    {
        return fail(std::string{mRow.pluginName} + ": enqueue before attachToContext");
    }
    Extent extent = extentOf(inputDesc[0].dims, error);
    int32_t const dtype = dtypeOf(inputDesc[0].type);
    if (!error.empty() || dtype < 0)
    {
        return fail(std::string{mRow.pluginName} + ": " + (error.empty() ? "dtype is not supported" : error));
    }
    // The kernels take inputs then outputs, in the contract's order.
    void* tensors[kMaxTensors];
    for (int32_t i = 0; i < mRow.inputCount; ++i)
    {
        tensors[i] = const_cast<void*>(inputs[i]);
    }
    for (int32_t i = 0; i < mRow.outputCount; ++i)
    {
        tensors[mRow.inputCount + i] = outputs[i];
    }
    Call call{mOp, dtype, tensors, extent.rows, extent.width, extent.width, mFields.values};
    if (mRow.kind == OpKind::kElementwise)
    {
        call.width = call.inputStride = extent.rows * extent.width;
        call.rows = 1;
    }
    return mKernels->launch(call, stream, error) ? kOk : fail(std::string{mRow.pluginName} + ": " + error);
}
catch (...)
{
    return kFailed;
}

IPluginV3* Plugin::attachToContext(IPluginResourceContext*) noexcept
try
{
    std::string error;
    Kernels const* const kernels = Kernels::current(mOp, error);
    if (kernels == nullptr)
    {
        fail(std::string{mRow.pluginName} + ": cannot attach: " + error);
        return nullptr;
    }
    Plugin* const copy = clone();
    if (copy != nullptr)
    {
        copy->mKernels = kernels;
    }
    return copy;
}
catch (...)
{
    return nullptr;
}

PluginFieldCollection const* Plugin::getFieldsToSerialize() noexcept
{
    return &mCollection;
}
} // namespace tblock

#include "creator.h"
#include "contract.h"
#include "fields.h"
#include "log.h"
#include "plugin.h"

#include <new>

namespace tblock
{
using namespace nvinfer1;

Creator::Creator(int32_t op) noexcept
    : mRow{*contract::kRows[op]}
    , mOp{op}
{
    for (int32_t i = 0; i < mRow.fieldCount; ++i)
    {
        mFields[i] = PluginField{mRow.fields[i].name, nullptr, typeOf(mRow.fields[i]), 1};
    }
    mCollection = PluginFieldCollection{mRow.fieldCount, mFields};
}

IPluginV3* Creator::createPlugin(char const* name, PluginFieldCollection const* fields, TensorRTPhase) noexcept
try
{
    FieldValues values;
    std::string const problem = values.read(mRow, fields);
    if (!problem.empty())
    {
        log(Severity::kERROR, problem + (name != nullptr && *name != '\0' ? std::string{" (layer "} + name + ")" : ""));
        return nullptr;
    }
    return new Plugin{mOp, values};
}
catch (...)
{
    log(Severity::kERROR, "out of memory");
    return nullptr;
}

PluginFieldCollection const* Creator::getFieldNames() noexcept
{
    return &mCollection;
}

char const* Creator::getPluginName() const noexcept
{
    return mRow.pluginName;
}

char const* Creator::getPluginVersion() const noexcept
{
    return mRow.version;
}

char const* Creator::getPluginNamespace() const noexcept
{
    return contract::kNamespace;
}
} // namespace tblock

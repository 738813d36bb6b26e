// The library under test, opened as TensorRT's registry opens it.
#pragma once

#include "contract.h"
#include "trt_mock.h"

#include <cstring>
#include <dlfcn.h>
#include <stdexcept>
#include <string>
#include <utility>

namespace harness
{
class PluginLibrary
{
public:
    explicit PluginLibrary(char const* path)
        : mHandle{dlopen(path, RTLD_NOW | RTLD_LOCAL)}
    {
        if (mHandle == nullptr)
        {
            throw std::runtime_error{dlerror()};
        }
        symbol<void (*)(ILoggerFinder*)>("setLoggerFinder")(&mFinder);
        mCreators = symbol<IPluginCreatorInterface* const* (*) (int32_t&)>("getCreators")(mCount);
    }

    int32_t count() const
    {
        return mCount;
    }

    IPluginCreatorV3One* creator(int32_t index) const
    {
        return static_cast<IPluginCreatorV3One*>(mCreators[index]);
    }

    IPluginCreatorV3One* creator(char const* name) const
    {
        for (int32_t i = 0; i < mCount; ++i)
        {
            if (std::strcmp(creator(i)->getPluginName(), name) == 0)
            {
                return creator(i);
            }
        }
        throw std::runtime_error{std::string{"no creator "} + name};
    }

    Logger& logger()
    {
        return mLogger;
    }

    template <typename Function>
    Function symbol(char const* name) const
    {
        void* const address = dlsym(mHandle, name);
        if (address == nullptr)
        {
            throw std::runtime_error{std::string{"library lacks "} + name};
        }
        return reinterpret_cast<Function>(address);
    }

private:
    void* mHandle;
    Logger mLogger;
    Finder mFinder{mLogger};
    IPluginCreatorInterface* const* mCreators{};
    int32_t mCount{};
};

// The fields of one plugin; values live as long as this.
struct Fields
{
    Fields(tblock::OpRow const& row, std::vector<tblock::FieldValue> given)
        : values{std::move(given)}
    {
        for (int32_t i = 0; i < row.fieldCount; ++i)
        {
            bool const isFloat = row.fields[i].kind == tblock::FieldKind::kFloat;
            list.push_back(PluginField{row.fields[i].name, &values[i],
                isFloat ? PluginFieldType::kFLOAT32 : PluginFieldType::kINT32, 1});
        }
    }
    // Legal ones.
    explicit Fields(tblock::OpRow const& row)
        : Fields{row, legal(row)}
    {
    }
    Fields(Fields const&) = delete;
    std::vector<tblock::FieldValue> values;
    std::vector<PluginField> list;

    PluginFieldCollection collection() const
    {
        return PluginFieldCollection{static_cast<int32_t>(list.size()), list.data()};
    }

private:
    static std::vector<tblock::FieldValue> legal(tblock::OpRow const& row)
    {
        std::vector<tblock::FieldValue> values(row.fieldCount);
        for (int32_t i = 0; i < row.fieldCount; ++i)
        {
            row.fields[i].kind == tblock::FieldKind::kFloat ? (void)(values[i].f = 0.5F) : (void)(values[i].i = 1);
        }
        return values;
    }
};

inline std::unique_ptr<IPluginV3> create(
    IPluginCreatorV3One* creator, Fields const& fields, TensorRTPhase phase = TensorRTPhase::kBUILD)
{
    PluginFieldCollection const collection = fields.collection();
    return std::unique_ptr<IPluginV3>{creator->createPlugin("layer", &collection, phase)};
}

inline IPluginV3OneCore* core(IPluginV3& plugin)
{
    return static_cast<IPluginV3OneCore*>(plugin.getCapabilityInterface(PluginCapabilityType::kCORE));
}

inline IPluginV3OneBuild* build(IPluginV3& plugin)
{
    return static_cast<IPluginV3OneBuild*>(plugin.getCapabilityInterface(PluginCapabilityType::kBUILD));
}

inline IPluginV3OneRuntime* runtime(IPluginV3& plugin)
{
    return static_cast<IPluginV3OneRuntime*>(plugin.getCapabilityInterface(PluginCapabilityType::kRUNTIME));
}
} // namespace harness

// The library under test, opened as TensorRT's registry opens it.
#pragma once

#include "trt_mock.h"

#include <cstring>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

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
    Fields(float eps, float weightOffset)
        : values{eps, weightOffset}
        , list{PluginField{"eps", &values[0], PluginFieldType::kFLOAT32, 1},
              PluginField{"weight_offset", &values[1], PluginFieldType::kFLOAT32, 1}}
    {
    }
    Fields(Fields const&) = delete;
    float values[2];
    std::vector<PluginField> list;

    PluginFieldCollection collection() const
    {
        return PluginFieldCollection{static_cast<int32_t>(list.size()), list.data()};
    }
};

inline std::unique_ptr<IPluginV3> create(
    IPluginCreatorV3One* creator, Fields const& fields, TensorRTPhase phase = TensorRTPhase::kBUILD)
{
    bool const none = creator->getFieldNames()->nbFields == 0;
    PluginFieldCollection const collection = none ? PluginFieldCollection{} : fields.collection();
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

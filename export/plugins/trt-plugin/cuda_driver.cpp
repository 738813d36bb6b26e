#include "cuda_driver.h"

#include <dlfcn.h>

namespace tblock
{
namespace
{
struct Opened
{
    CudaDriver driver{};
    std::string error;
};

template <typename Function>
bool find(void* library, char const* name, Function& target)
{
    target = reinterpret_cast<Function>(dlsym(library, name));
    return target != nullptr;
}

Opened open()
{
    Opened opened;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
    {
        char const* const reason = dlerror();
        opened.error = std::string{"no CUDA driver: "} + (reason != nullptr ? reason : "libcuda.so.1 not found");
        return opened;
    }
    CudaDriver& d = opened.driver;
    bool const complete = find(library, "cuInit", d.init) && find(library, "cuCtxGetCurrent", d.ctxGetCurrent)
        && find(library, "cuCtxGetDevice", d.ctxGetDevice)
        && find(library, "cuDeviceGetAttribute", d.deviceGetAttribute)
        && find(library, "cuDeviceGetName", d.deviceGetName) && find(library, "cuModuleLoadData", d.moduleLoadData)
        && find(library, "cuModuleUnload", d.moduleUnload)
        && find(library, "cuModuleGetFunction", d.moduleGetFunction)
        && find(library, "cuFuncGetAttribute", d.funcGetAttribute) && find(library, "cuLaunchKernel", d.launchKernel)
        && find(library, "cuGetErrorString", d.getErrorString);
    if (!complete)
    {
        opened.error = "libcuda.so.1 lacks a function of the CUDA driver interface";
        return opened;
    }
    find(library, "cuCtxGetId", d.ctxGetId);
    find(library, "cuFuncLoad", d.funcLoad);
    CudaResult const result = d.init(0);
    if (result != 0)
    {
        opened.error = "cuInit: " + d.describe(result);
    }
    return opened;
}
} // namespace

CudaDriver const* CudaDriver::get(std::string& error)
{
    static Opened const opened = open();
    error = opened.error;
    return opened.error.empty() ? &opened.driver : nullptr;
}

std::string CudaDriver::describe(CudaResult result) const
{
    char const* text = nullptr;
    getErrorString(result, &text);
    return (text != nullptr ? std::string{text} : std::string{"unknown error"}) + " (CUDA error "
        + std::to_string(result) + ")";
}
} // namespace tblock

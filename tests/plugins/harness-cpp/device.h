// The harness's own view of the CUDA driver: contexts and memory. Opened at run time, real or stand-in.
#pragma once

#include "check.h"

#include <cstdint>
#include <dlfcn.h>
#include <string>
#include <vector>

namespace harness
{
class Device
{
public:
    // What is missing, or an empty text. A driver without a device is missing; any other error is a failed check.
    std::string open()
    {
        void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr)
        {
            return "no CUDA driver";
        }
        find(library, "cuInit", mInit);
        find(library, "cuDeviceGetCount", mCount);
        find(library, "cuDevicePrimaryCtxRetain", mRetain);
        find(library, "cuDeviceGetAttribute", mAttribute);
        find(library, "cuCtxSetCurrent", mSetCurrent);
        find(library, "cuCtxSynchronize", mSynchronize);
        find(library, "cuMemAlloc_v2", mAllocate);
        find(library, "cuMemFree_v2", mFree);
        find(library, "cuMemcpyHtoD_v2", mUpload);
        find(library, "cuMemcpyDtoH_v2", mDownload);
        mLoads = reinterpret_cast<int (*)()>(dlsym(library, "fake_cuda_loads"));
        constexpr int kNoDevice = 100;
        int const result = mInit(0);
        if (result == kNoDevice)
        {
            return "no CUDA device";
        }
        check(result == 0, "cuInit gives " + std::to_string(result));
        return {};
    }

    bool isFake() const
    {
        return mLoads != nullptr;
    }
    // Module loads so far; stand-in only.
    int loads() const
    {
        return isFake() ? mLoads() : 0;
    }
    int count() const
    {
        int count = 0;
        expect(mCount(&count), "cuDeviceGetCount");
        return count;
    }
    // Makes the primary context of a device current and returns its compute capability, as 80.
    int use(int device) const
    {
        uintptr_t context = 0;
        int major = 0;
        int minor = 0;
        expect(mRetain(&context, device), "cuDevicePrimaryCtxRetain");
        expect(mSetCurrent(context), "cuCtxSetCurrent");
        expect(mAttribute(&major, 75, device), "cuDeviceGetAttribute");
        expect(mAttribute(&minor, 76, device), "cuDeviceGetAttribute");
        return major * 10 + minor;
    }
    void leave() const
    {
        expect(mSetCurrent(0), "cuCtxSetCurrent");
    }
    uintptr_t upload(std::vector<char> const& bytes) const
    {
        uintptr_t address = 0;
        expect(mAllocate(&address, bytes.size()), "cuMemAlloc");
        expect(mUpload(address, bytes.data(), bytes.size()), "cuMemcpyHtoD");
        return address;
    }
    std::vector<char> download(uintptr_t address, size_t size) const
    {
        std::vector<char> bytes(size);
        expect(mSynchronize(), "cuCtxSynchronize");
        expect(mDownload(bytes.data(), address, size), "cuMemcpyDtoH");
        return bytes;
    }
    void release(uintptr_t address) const
    {
        expect(mFree(address), "cuMemFree");
    }

private:
    int (*mInit)(unsigned);
    int (*mCount)(int*);
    int (*mRetain)(uintptr_t*, int);
    int (*mAttribute)(int*, int, int);
    int (*mSetCurrent)(uintptr_t);
    int (*mSynchronize)();
    int (*mAllocate)(uintptr_t*, size_t);
    int (*mFree)(uintptr_t);
    int (*mUpload)(uintptr_t, void const*, size_t);
    int (*mDownload)(void*, uintptr_t, size_t);
    int (*mLoads)() = nullptr;

    static void expect(int result, char const* what)
    {
        check(result == 0, std::string{what} + " gives " + std::to_string(result));
    }
    template <typename Function>
    static void find(void* library, char const* name, Function& target)
    {
        target = reinterpret_cast<Function>(dlsym(library, name));
        check(target != nullptr, std::string{"driver lacks "} + name);
    }
};
} // namespace harness

// The CUDA driver, opened at run time, so that the library loads on machines without one. Types and values are those of
// the driver's published C interface.
#pragma once

#include <cstdint>
#include <string>

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;

namespace tblock
{
using CudaResult = int;
using CudaContext = CUctx_st*;
using CudaModule = CUmod_st*;
using CudaFunction = CUfunc_st*;
using CudaStream = CUstream_st*;

struct CudaDriver
{
    CudaResult (*init)(unsigned flags);
    CudaResult (*ctxGetCurrent)(CudaContext* context);
    CudaResult (*ctxGetDevice)(int* device);
    CudaResult (*deviceGetAttribute)(int* value, int attribute, int device);
    CudaResult (*deviceGetName)(char* name, int length, int device);
    CudaResult (*moduleLoadData)(CudaModule* module, void const* image);
    CudaResult (*moduleUnload)(CudaModule module);
    CudaResult (*moduleGetFunction)(CudaFunction* function, CudaModule module, char const* name);
    CudaResult (*funcGetAttribute)(int* value, int attribute, CudaFunction function);
    CudaResult (*launchKernel)(CudaFunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
        unsigned blockY, unsigned blockZ, unsigned sharedBytes, CudaStream stream, void** arguments, void** extra);
    CudaResult (*getErrorString)(CudaResult result, char const** text);
    // Absent before CUDA 12.0 and 12.4; null then.
    CudaResult (*ctxGetId)(CudaContext context, unsigned long long* id);
    CudaResult (*funcLoad)(CudaFunction function);

    // The driver, or null with the reason in `error`. Opened once per process.
    static CudaDriver const* get(std::string& error);

    std::string describe(CudaResult result) const;
};

inline constexpr int kComputeCapabilityMajor = 75;
inline constexpr int kComputeCapabilityMinor = 76;
inline constexpr int kFunctionRegisters = 4;
} // namespace tblock

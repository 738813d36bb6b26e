// The embedded kernels: which variant a shape takes, loading them into a CUDA context, launching one.
#pragma once

#include "cuda_driver.h"
#include "op_row.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tblock
{
struct Variant
{
    char const* name;
    int32_t op;
    int32_t dtype;
    int32_t align;
    int32_t tileRows;
    int32_t cols;
    int32_t warps;
    int64_t maxWidth;
    int64_t maxRows;
    int32_t sharedBytes;
};

// One launch. `tensors` are inputs then outputs, in the order of the contract row.
struct Call
{
    int32_t op;
    int32_t dtype;
    void* const* tensors;
    int64_t rows;
    int64_t width;
    int64_t inputStride; // of a row of the inputs, in elements; the width unless the op is elementwise
    FieldValue const* fields; // in the order of the contract row
};

// Index of the first variant that fits, or -1; `alignment` in bytes, at most 16.
int32_t selectVariant(int32_t op, int32_t dtype, int64_t rows, int64_t width, int64_t alignment) noexcept;

// What is wrong with a width, or an empty text.
std::string checkWidth(int32_t op, int64_t width);

// The functions of one op in one CUDA context. Lives until the process ends: contexts are few, and unloading would race
// with an application that tears its context down.
class Kernels
{
public:
    // Those of the calling thread's current context, loaded on first use; null with the reason in `error`. Must not run
    // during stream capture. Thread-safe.
    static Kernels const* current(int32_t op, std::string& error);

    // Launches on `stream` and takes no lock. False with the reason in `error`.
    bool launch(Call const& call, CudaStream stream, std::string& error) const;

private:
    CudaDriver const* mDriver{};
    CudaModule mModule{};
    std::vector<CudaFunction> mFunctions; // by variant index; null for the variants of other ops
    bool load(int32_t op, std::string& error);
};
} // namespace tblock

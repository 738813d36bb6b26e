// The C interface of the library beside TensorRT's own two entry points. Ids are positions in the contract's plugin rows
// and in (float32, float16, bfloat16).
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
extern "C"
{
    // Index of the variant that a shape selects, or -1; alignment in bytes, at most 16.
    int32_t tblock_plugin_select(int32_t op, int32_t dtype, int64_t rows, int64_t width, int64_t alignment) noexcept;

    // Launches a kernel in the calling thread's current CUDA context, as a plugin's enqueue does. `tensors` are device
    // pointers, inputs then outputs; input_stride is the row stride of the inputs in elements (elementwise only: the two
    // halves of a packed [rows, 2F] are rows of stride 2F; else the width); `fields` are the attributes in the order of
    // the contract's row, 4 bytes each. The first call in a context loads the kernels, so make it outside a stream
    // capture. Returns 0, or 1 with the reason in tblock_plugin_error.
    int32_t tblock_plugin_launch(int32_t op, int32_t dtype, void* const* tensors, int64_t rows, int64_t width,
        int64_t input_stride, void const* fields, void* stream) noexcept;

    // Why the last call on this thread failed.
    char const* tblock_plugin_error() noexcept;
}
#pragma GCC visibility pop

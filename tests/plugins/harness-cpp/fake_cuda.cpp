// A stand-in for libcuda.so.1: device memory is host memory, and a launch computes what the kernel of that name must, in
// double precision, program by program. It checks what our C++ hands to a driver (images, names, grids, arguments), and
// says nothing about the kernels themselves. FAKE_CUDA_ARCH is the device (80); FAKE_CUDA_REFUSE_CUBIN refuses cubins, as
// an old driver does.
#include "float_types.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <string>

using namespace harness;

namespace
{
constexpr int kInvalidValue = 1;
constexpr int kInvalidImage = 200;
constexpr int kInvalidContext = 201;
constexpr int kNotFound = 500;
constexpr int kContexts = 2; // one per device

struct Module
{
    char const* data;
    size_t size;
};

std::atomic<int> gLoads{0};
thread_local uintptr_t tContext = 0;

int arch()
{
    char const* const text = std::getenv("FAKE_CUDA_ARCH");
    return text != nullptr ? std::atoi(text) : 80;
}

template <typename T>
T argument(void** arguments, int index)
{
    T value;
    std::memcpy(&value, arguments[index], sizeof(T));
    return value;
}

struct Shape
{
    FloatType type;
    int64_t align;
    int64_t tileRows;
    int64_t cols;
};

// From a name like rms_norm_bf16_a8_r1_c4096_two_pass.
Shape parse(std::string const& name, size_t prefix)
{
    Shape shape{};
    char dtype[8] = {};
    long align = 0;
    long rows = 0;
    long cols = 0;
    if (std::sscanf(name.c_str() + prefix, "_%4[a-z0-9]_a%ld_r%ld_c%ld", dtype, &align, &rows, &cols) == 4)
    {
        for (FloatType const& type : kFloatTypes)
        {
            if (std::strcmp(type.name, dtype) == 0)
            {
                shape = Shape{type, align, rows, cols};
            }
        }
    }
    return shape;
}

void normPrograms(Shape const& s, bool add, unsigned grid, void** a)
{
    int const base = add ? 5 : 3;
    int64_t const rows = argument<int64_t>(a, base);
    int64_t const width = argument<int64_t>(a, base + 1) * s.align;
    float const eps = argument<float>(a, base + 2);
    float const offset = argument<float>(a, base + 3);
    char const* const x = argument<char const*>(a, 0);
    char const* const residual = add ? argument<char const*>(a, 1) : nullptr;
    char const* const weight = argument<char const*>(a, add ? 2 : 1);
    char* const total = add ? argument<char*>(a, 3) : nullptr;
    char* const y = argument<char*>(a, add ? 4 : 2);
    for (int64_t row = 0; row < static_cast<int64_t>(grid) * s.tileRows && row < rows; ++row)
    {
        double squares = 0.0;
        for (int64_t i = row * width; i < (row + 1) * width; ++i)
        {
            if (add)
            {
                encode(total, i, s.type, decode(x, i, s.type) + decode(residual, i, s.type));
            }
            double const value = decode(add ? total : x, i, s.type);
            squares += value * value;
        }
        double const scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);
        for (int64_t col = 0; col < width; ++col)
        {
            int64_t const i = row * width + col;
            double const value = decode(add ? total : x, i, s.type);
            encode(y, i, s.type, value * scale * (decode(weight, col, s.type) + offset));
        }
    }
}

void swigluPrograms(Shape const& s, unsigned grid, void** a)
{
    int64_t const chunks = argument<int64_t>(a, 3);
    int64_t const width = argument<int64_t>(a, 4) * s.align;
    int64_t const stride = argument<int64_t>(a, 5) * s.align;
    for (int64_t program = 0; program < grid; ++program)
    {
        int64_t const row = program / chunks;
        int64_t const first = program % chunks * s.cols;
        for (int64_t col = first; col < first + s.cols && col < width; ++col)
        {
            double const gate = decode(argument<char const*>(a, 0), row * stride + col, s.type);
            double const up = decode(argument<char const*>(a, 1), row * stride + col, s.type);
            encode(argument<char*>(a, 2), row * width + col, s.type, gate / (1.0 + std::exp(-gate)) * up);
        }
    }
}

bool contains(Module const& module, std::string const& text)
{
    return memmem(module.data, module.size, text.data(), text.size()) != nullptr;
}
} // namespace

extern "C"
{
    int fake_cuda_loads()
    {
        return gLoads.load();
    }
    int cuInit(unsigned)
    {
        return 0;
    }
    int cuDeviceGetCount(int* count)
    {
        *count = kContexts;
        return 0;
    }
    int cuDeviceGet(int* device, int ordinal)
    {
        *device = ordinal;
        return 0;
    }
    int cuDeviceGetName(char* name, int length, int device)
    {
        std::snprintf(name, length, "stand-in device %d", device);
        return 0;
    }
    int cuDeviceGetAttribute(int* value, int attribute, int)
    {
        *value = attribute == 75 ? arch() / 10 : arch() % 10;
        return 0;
    }
    int cuDevicePrimaryCtxRetain(uintptr_t* context, int device)
    {
        *context = device + 1;
        return 0;
    }
    int cuCtxSetCurrent(uintptr_t context)
    {
        tContext = context;
        return 0;
    }
    int cuCtxGetCurrent(uintptr_t* context)
    {
        *context = tContext;
        return 0;
    }
    int cuCtxGetDevice(int* device)
    {
        *device = static_cast<int>(tContext) - 1;
        return tContext != 0 ? 0 : kInvalidContext;
    }
    int cuCtxGetId(uintptr_t context, unsigned long long* id)
    {
        *id = context;
        return 0;
    }
    int cuCtxSynchronize()
    {
        return 0;
    }
    int cuModuleLoadData(Module** module, char const* image)
    {
        ++gLoads;
        size_t size = 0;
        if (std::memcmp(image, ELFMAG, SELFMAG) == 0)
        {
            if (std::getenv("FAKE_CUDA_REFUSE_CUBIN") != nullptr)
            {
                return kInvalidImage;
            }
            auto const* const header = reinterpret_cast<Elf64_Ehdr const*>(image);
            size = header->e_shoff + size_t{header->e_shentsize} * header->e_shnum;
        }
        else if (std::strncmp(image, ".version", 8) == 0)
        {
            size = std::strlen(image);
        }
        *module = size != 0 ? new Module{image, size} : nullptr;
        return size != 0 ? 0 : kInvalidImage;
    }
    int cuModuleUnload(Module* module)
    {
        delete module;
        return 0;
    }
    int cuModuleGetFunction(std::string** function, Module* module, char const* name)
    {
        bool const found = contains(*module, std::string{".entry "} + name + "(")
            || contains(*module, std::string{".text."} + name);
        *function = found ? new std::string{name} : nullptr;
        return found ? 0 : kNotFound;
    }
    int cuFuncGetAttribute(int* value, int, std::string*)
    {
        *value = 32;
        return 0;
    }
    int cuFuncLoad(std::string* function)
    {
        return function != nullptr ? 0 : kInvalidValue;
    }
    int cuLaunchKernel(std::string* function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
        unsigned blockY, unsigned blockZ, unsigned sharedBytes, void*, void** arguments, void**)
    {
        bool const flat = gridY == 1 && gridZ == 1 && blockY == 1 && blockZ == 1 && gridX > 0;
        if (function == nullptr || !flat || blockX % 32 != 0 || blockX == 0 || blockX > 1024 || sharedBytes > 49152)
        {
            return kInvalidValue;
        }
        for (std::string const prefix : {"rms_norm", "add_rms_norm", "swiglu"})
        {
            if (function->compare(0, prefix.size(), prefix) == 0)
            {
                Shape const shape = parse(*function, prefix.size());
                if (shape.cols == 0)
                {
                    return kInvalidValue;
                }
                prefix == "swiglu" ? swigluPrograms(shape, gridX, arguments)
                                   : normPrograms(shape, prefix == "add_rms_norm", gridX, arguments);
                return 0;
            }
        }
        return kNotFound;
    }
    int cuGetErrorString(int, char const** text)
    {
        *text = "stand-in error";
        return 0;
    }
    int cuMemAlloc_v2(uintptr_t* address, size_t size)
    {
        *address = reinterpret_cast<uintptr_t>(std::aligned_alloc(256, (size + 255) / 256 * 256));
        return *address != 0 ? 0 : 2;
    }
    int cuMemFree_v2(uintptr_t address)
    {
        std::free(reinterpret_cast<void*>(address));
        return 0;
    }
    int cuMemcpyHtoD_v2(uintptr_t target, void const* source, size_t size)
    {
        std::memcpy(reinterpret_cast<void*>(target), source, size);
        return 0;
    }
    int cuMemcpyDtoH_v2(void* target, uintptr_t source, size_t size)
    {
        std::memcpy(target, reinterpret_cast<void const*>(source), size);
        return 0;
    }
}

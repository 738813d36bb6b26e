// A stand-in for libcuda.so.1: device memory is host memory, and a launch must be one of the cases in FAKE_CUDA_CASES: it
// looks for the case whose op, dtype, attributes and inputs are those that the launch's arguments lead to, and writes its
// outputs where the launch's grid reaches. It checks what our C++ hands to a driver (images, names, grids, arguments), and
// says nothing about the kernels themselves. FAKE_CUDA_ARCH is the device (80); FAKE_CUDA_REFUSE_CUBIN refuses cubins, as
// an old driver does.
#include "cases.h"
#include "float_types.h"

#include <algorithm>
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
    int32_t dtype;
    int64_t align;
    int64_t tileRows;
    int64_t cols;
};

// From a name like rms_norm_bf16_a8_r1_c4096.
Shape parse(std::string const& name, size_t prefix)
{
    Shape shape{};
    char dtype[8] = {};
    long align = 0;
    long rows = 0;
    long cols = 0;
    if (std::sscanf(name.c_str() + prefix, "_%4[a-z0-9]_a%ld_r%ld_c%ld", dtype, &align, &rows, &cols) == 4)
    {
        for (int32_t id = 0; id < 3; ++id)
        {
            if (std::strcmp(kFloatTypes[id].name, dtype) == 0)
            {
                shape = Shape{id, align, rows, cols};
            }
        }
    }
    return shape;
}

// One launch, read as the kernel reads its arguments: tensors, sizes of the op's kind, attributes.
struct Launch
{
    int32_t op;
    Shape shape;
    int64_t programs;
    std::vector<char*> tensors;
    std::vector<tblock::FieldValue> fields;
    int64_t rows;
    int64_t width;
    int64_t stride; // of a row of the inputs
    int64_t chunks; // programs per row

    Launch(int32_t op, Shape const& shape, unsigned grid, void** arguments)
        : op{op}
        , shape{shape}
        , programs{grid}
    {
        tblock::OpRow const& row = *tblock::contract::kRows[op];
        int32_t next = 0;
        while (next < row.inputCount + row.outputCount)
        {
            tensors.push_back(argument<char*>(arguments, next++));
        }
        int64_t const first = argument<int64_t>(arguments, next++);
        width = stride = argument<int64_t>(arguments, next++) * shape.align;
        bool const elementwise = row.kind == tblock::OpKind::kElementwise;
        if (elementwise)
        {
            stride = argument<int64_t>(arguments, next++) * shape.align;
        }
        chunks = elementwise ? first : 1;
        rows = elementwise ? programs / std::max<int64_t>(first, 1) : first;
        for (int32_t i = 0; i < row.fieldCount; ++i)
        {
            fields.push_back(argument<tblock::FieldValue>(arguments, next++));
        }
    }

    bool is(Case const& c) const
    {
        bool same = c.op == op && c.dtype == shape.dtype && c.rows * c.width == rows * width;
        for (size_t i = 0; same && i < fields.size(); ++i)
        {
            same = std::memcmp(&c.fields[i], &fields[i], sizeof(fields[i])) == 0;
        }
        return same && readsInputsOf(c);
    }

    bool readsInputsOf(Case const& c) const
    {
        int64_t const size = width * c.type().bytes;
        for (int32_t i = 0; i < c.row().inputCount; ++i)
        {
            for (int64_t row = 0; row < (c.isVector(i) ? 1 : rows); ++row)
            {
                char const* const wanted = c.packed ? c.inputs[0].data() + (row * c.row().inputCount + i) * size
                                                    : c.inputs[i].data() + row * size;
                if (std::memcmp(tensors[i] + row * stride * c.type().bytes, wanted, size) != 0)
                {
                    return false;
                }
            }
        }
        return true;
    }

    void write(Case const& c) const
    {
        for (int64_t program = 0; program < programs; ++program)
        {
            int64_t const top = program / chunks * shape.tileRows;
            int64_t const left = program % chunks * shape.cols;
            int64_t const right = chunks > 1 || c.row().kind == tblock::OpKind::kElementwise ? left + shape.cols : width;
            for (int64_t row = top; row < top + shape.tileRows && row < rows; ++row)
            {
                for (int64_t col = left; col < right && col < width; ++col)
                {
                    int64_t const at = row * width + col;
                    for (size_t i = 0; i < c.outputs.size(); ++i)
                    {
                        encode(tensors[c.row().inputCount + i], at, c.type(), c.outputs[i][at]);
                    }
                }
            }
        }
    }
};

std::vector<Case> const& cases()
{
    static std::vector<Case> const all = readCases(std::getenv("FAKE_CUDA_CASES"));
    return all;
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
        for (int32_t op = 0; op < static_cast<int32_t>(std::size(tblock::contract::kRows)); ++op)
        {
            std::string const prefix = tblock::contract::kRows[op]->op;
            Shape const shape
                = function->compare(0, prefix.size(), prefix) == 0 ? parse(*function, prefix.size()) : Shape{};
            if (shape.cols == 0)
            {
                continue;
            }
            Launch const launch{op, shape, gridX, arguments};
            for (Case const& c : cases())
            {
                if (launch.is(c))
                {
                    launch.write(c);
                    return 0;
                }
            }
            return kInvalidValue;
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

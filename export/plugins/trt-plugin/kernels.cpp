#include "kernels.h"
#include "contract.h"
#include "log.h"

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

namespace tblock
{
namespace
{
struct Image
{
    unsigned char const* data;
    int32_t op;
    int32_t arch;
    bool ptx;
};

#include "images.inc"
#include "variants.inc"

constexpr int32_t kBaseline = 80;
constexpr int64_t kVectorBytes = 16;
constexpr int64_t kMaxPrograms = 2147483647;
constexpr int32_t kWarpSize = 32;

// Largest power of two, at most 16, that divides every pointer and row size of the call.
int64_t alignmentOf(Call const& call, int32_t tensorCount)
{
    uint64_t bits = kVectorBytes | static_cast<uint64_t>(call.width * kDtypeBytes[call.dtype]);
    if (call.rows > 1)
    {
        bits |= static_cast<uint64_t>(call.inputStride * kDtypeBytes[call.dtype]);
    }
    for (int32_t i = 0; i < tensorCount; ++i)
    {
        bits |= reinterpret_cast<uint64_t>(call.tensors[i]);
    }
    return static_cast<int64_t>(bits & (~bits + 1));
}

} // namespace

int32_t selectVariant(int32_t op, int32_t dtype, int64_t rows, int64_t width, int64_t alignment) noexcept
{
    int32_t index = 0;
    for (Variant const& v : kVariants)
    {
        bool const aligned = v.align == 1 || alignment >= v.align * kDtypeBytes[v.dtype];
        if (v.op == op && v.dtype == dtype && aligned && width <= v.maxWidth && rows <= v.maxRows)
        {
            return index;
        }
        ++index;
    }
    return -1;
}

std::string checkWidth(int32_t op, int64_t width)
{
    if (width < 1)
    {
        return "last dimension " + std::to_string(width) + ": must be at least 1";
    }
    if (width > contract::kRows[op]->maxWidth)
    {
        return "last dimension " + std::to_string(width) + ": at most "
            + std::to_string(contract::kRows[op]->maxWidth) + " is supported";
    }
    return {};
}

Kernels const* Kernels::current(int32_t op, std::string& error)
{
    CudaDriver const* const driver = CudaDriver::get(error);
    if (driver == nullptr)
    {
        return nullptr;
    }
    CudaContext context{};
    CudaResult result = driver->ctxGetCurrent(&context);
    if (result != 0 || context == nullptr)
    {
        error = result != 0 ? driver->describe(result) : "no CUDA context is current on this thread";
        return nullptr;
    }
    // A context can be destroyed and another created at the same address; the id tells them apart where there is one.
    unsigned long long id = 0;
    if (driver->ctxGetId != nullptr)
    {
        driver->ctxGetId(context, &id);
    }
    static std::mutex mutex;
    static auto& loaded = *new std::map<std::tuple<CudaContext, unsigned long long, int32_t>, std::unique_ptr<Kernels>>;
    std::lock_guard<std::mutex> const lock{mutex};
    std::unique_ptr<Kernels>& slot = loaded[{context, id, op}];
    if (slot == nullptr)
    {
        auto kernels = std::make_unique<Kernels>();
        kernels->mDriver = driver;
        if (!kernels->load(op, error))
        {
            return nullptr;
        }
        slot = std::move(kernels);
    }
    return slot.get();
}

bool Kernels::load(int32_t op, std::string& error)
{
    int device = 0;
    int major = 0;
    int minor = 0;
    char name[128] = "unknown device";
    CudaResult result = mDriver->ctxGetDevice(&device);
    result = result != 0 ? result : mDriver->deviceGetAttribute(&major, kComputeCapabilityMajor, device);
    result = result != 0 ? result : mDriver->deviceGetAttribute(&minor, kComputeCapabilityMinor, device);
    result = result != 0 ? result : mDriver->deviceGetName(name, sizeof(name), device);
    if (result != 0)
    {
        error = "cannot ask the device: " + mDriver->describe(result);
        return false;
    }
    int32_t const arch = major * 10 + minor;
    if (arch < kBaseline)
    {
        error = std::string{name} + " is sm_" + std::to_string(arch) + ": sm_" + std::to_string(kBaseline)
            + " or later is needed; build the engine without plugins (--fusion native)";
        return false;
    }
    // Exact cubins first (same major, highest minor not above ours), then PTX for the driver to compile.
    std::vector<Image const*> candidates;
    for (bool const ptx : {false, true})
    {
        for (int32_t wanted = arch; wanted >= kBaseline; --wanted)
        {
            for (Image const& image : kImages)
            {
                bool const runs = ptx || image.arch / 10 == major;
                if (image.op == op && image.ptx == ptx && image.arch == wanted && runs)
                {
                    candidates.push_back(&image);
                }
            }
        }
    }
    CudaModule module{};
    for (Image const* image : candidates)
    {
        result = mDriver->moduleLoadData(&module, image->data);
        std::string const label
            = std::string{image->ptx ? "PTX" : "cubin"} + " sm_" + std::to_string(image->arch) + " on " + name;
        if (result == 0)
        {
            log(Severity::kVERBOSE, "loaded " + label);
            break;
        }
        error = label + ": " + mDriver->describe(result);
        // An older driver may not know the cubin's format, but it knows the PTX.
        log(Severity::kWARNING, "not loaded: " + error);
        module = nullptr;
    }
    if (module == nullptr)
    {
        return false;
    }
    for (Variant const& v : kVariants)
    {
        CudaFunction function{};
        if (v.op == op)
        {
            result = mDriver->moduleGetFunction(&function, module, v.name);
            // Drivers load functions lazily, on first launch, which a stream capture cannot bear: load them now.
            int registers = 0;
            if (result == 0)
            {
                result = mDriver->funcLoad != nullptr
                    ? mDriver->funcLoad(function)
                    : mDriver->funcGetAttribute(&registers, kFunctionRegisters, function);
            }
            if (result != 0)
            {
                error = std::string{v.name} + ": " + mDriver->describe(result);
                mDriver->moduleUnload(module);
                return false;
            }
        }
        mFunctions.push_back(function);
    }
    mModule = module;
    error.clear();
    return true;
}

bool Kernels::launch(Call const& call, CudaStream stream, std::string& error) const
{
    if (call.rows == 0 || call.width == 0)
    {
        return true;
    }
    OpRow const& row = *contract::kRows[call.op];
    int32_t const tensorCount = row.inputCount + row.outputCount;
    int32_t const index = selectVariant(call.op, call.dtype, call.rows, call.width, alignmentOf(call, tensorCount));
    if (index < 0)
    {
        error = "no kernel for rows " + std::to_string(call.rows) + ", width " + std::to_string(call.width);
        return false;
    }
    Variant const& v = kVariants[index];
    bool const elementwise = row.kind == OpKind::kElementwise;
    int64_t const chunks = elementwise ? (call.width + v.cols - 1) / v.cols : 1;
    int64_t const tiles = (call.rows + v.tileRows - 1) / v.tileRows;
    int64_t programs = 0;
    if (__builtin_mul_overflow(tiles, chunks, &programs) || programs > kMaxPrograms)
    {
        error = "rows " + std::to_string(call.rows) + ", width " + std::to_string(call.width) + ": "
            + std::to_string(tiles) + " x " + std::to_string(chunks) + " programs are more than a launch can hold";
        return false;
    }
    // In the order of the Triton kernel's arguments; two scratch pointers of Triton's own come last.
    int64_t first = elementwise ? chunks : call.rows;
    int64_t units = call.width / v.align;
    int64_t strideUnits = call.inputStride / v.align;
    void* scratch = nullptr;
    void* tensors[kMaxTensors];
    FieldValue fields[kMaxFields];
    void* arguments[kMaxTensors + kMaxFields + 5];
    int32_t count = 0;
    for (int32_t i = 0; i < tensorCount; ++i)
    {
        tensors[i] = call.tensors[i];
        arguments[count++] = &tensors[i];
    }
    arguments[count++] = &first;
    arguments[count++] = &units;
    if (elementwise)
    {
        arguments[count++] = &strideUnits;
    }
    for (int32_t i = 0; i < row.fieldCount; ++i)
    {
        fields[i] = call.fields[i];
        arguments[count++] = &fields[i];
    }
    arguments[count++] = &scratch;
    arguments[count++] = &scratch;
    CudaResult const result = mDriver->launchKernel(mFunctions[index], static_cast<unsigned>(programs), 1, 1,
        v.warps * kWarpSize, 1, 1, v.sharedBytes, stream, arguments, nullptr);
    if (result != 0)
    {
        error = std::string{"launch of "} + v.name + ": " + mDriver->describe(result);
        return false;
    }
    return true;
}
} // namespace tblock

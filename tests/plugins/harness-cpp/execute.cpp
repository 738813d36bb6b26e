#include "check.h"
#include "commands.h"
#include "device.h"
#include "exports.h"

#include <algorithm>

namespace harness
{
namespace
{
using tblock::OpRow;

constexpr DataType kTypes[] = {DataType::kFLOAT, DataType::kHALF, DataType::kBF16};
constexpr int64_t kGuard = 512; // bytes around every tensor
constexpr int64_t kBriefElements = 19 * 1024;

// Device memory between guards of 0xFF, which is NaN in every type.
class Memory
{
public:
    Memory(Device const& device, std::vector<char> const& content)
        : mDevice{device}
        , mSize{content.size()}
    {
        std::vector<char> bytes(mSize + 2 * kGuard, static_cast<char>(0xFF));
        std::copy(content.begin(), content.end(), bytes.begin() + kGuard);
        mBase = device.upload(bytes);
    }
    Memory(Device const& device, size_t size)
        : Memory{device, std::vector<char>(size, static_cast<char>(0xFF))}
    {
    }
    Memory(Memory&& other) noexcept
        : mDevice{other.mDevice}
        , mBase{other.mBase}
        , mSize{other.mSize}
    {
        other.mBase = 0;
    }
    ~Memory()
    {
        if (mBase != 0)
        {
            mDevice.release(mBase);
        }
    }
    char* data() const
    {
        return reinterpret_cast<char*>(mBase + kGuard);
    }
    // The content; the guards must be as they were.
    std::vector<char> download(std::string const& label) const
    {
        std::vector<char> const bytes = mDevice.download(mBase, mSize + 2 * kGuard);
        auto const clean = [](char byte) { return byte == static_cast<char>(0xFF); };
        check(std::all_of(bytes.begin(), bytes.begin() + kGuard, clean) && std::all_of(bytes.end() - kGuard, bytes.end(), clean),
            label + ": wrote outside the output");
        return {bytes.begin() + kGuard, bytes.end() - kGuard};
    }

private:
    Device const& mDevice;
    uintptr_t mBase = 0;
    size_t mSize;
};

// The measure of export/plugins/selfcheck.py: error over the larger of value, row RMS and smallest normal, in units.
double errorUnits(std::vector<char> const& bytes, std::vector<double> const& wanted, int64_t width, FloatType const& type)
{
    double worst = 0.0;
    for (size_t row = 0; row < wanted.size(); row += width)
    {
        double squares = 0.0;
        for (size_t i = row; i < row + width; ++i)
        {
            squares += std::isinf(roundTo(wanted[i], type)) ? 0.0 : wanted[i] * wanted[i];
        }
        double const rms = std::sqrt(squares / static_cast<double>(width));
        for (size_t i = row; i < row + width; ++i)
        {
            double const y = decode(bytes.data(), static_cast<int64_t>(i), type);
            if (std::isinf(roundTo(wanted[i], type)))
            {
                worst = y == roundTo(wanted[i], type) ? worst : INFINITY;
                continue;
            }
            double const scale = std::max({std::fabs(wanted[i]), rms, smallestNormal(type)});
            double const error = std::fabs(y - wanted[i]) / scale / unitRoundoff(type);
            worst = error <= worst ? worst : error; // NaN counts as worst
        }
    }
    return worst;
}

// The tensors of a case on a device, and what came out of it.
struct Placed
{
    Case const& given;
    std::vector<Memory> in;
    std::vector<Memory> out;

    Placed(Device const& device, Case const& c)
        : given{c}
    {
        for (std::vector<char> const& input : c.inputs)
        {
            in.emplace_back(device, input);
        }
        for (std::vector<double> const& output : c.outputs)
        {
            out.emplace_back(device, output.size() * c.type().bytes);
        }
    }
    void compare(Budget const& budget) const
    {
        for (size_t i = 0; i < out.size(); ++i)
        {
            std::string const label = given.label() + " " + given.row().outputs[i].name;
            double const units
                = errorUnits(out[i].download(label), given.outputs[i], given.width, given.type());
            double const most = budget.units[given.dtype];
            check(units <= most, label + ": " + std::to_string(units) + " units, at most " + std::to_string(most));
        }
    }
};

void enqueueOne(Device const& device, Case const& c, IPluginV3& attached, Budget const& budget)
{
    Placed const placed{device, c};
    std::vector<PluginTensorDesc> inDesc;
    std::vector<PluginTensorDesc> outDesc;
    std::vector<void const*> inputs;
    std::vector<void*> outputs;
    for (int32_t i = 0; i < c.row().inputCount; ++i)
    {
        using Shape = std::vector<int64_t>;
        inDesc.push_back(desc(c.isVector(i) ? Shape{c.width} : Shape{1, c.rows, c.width}, kTypes[c.dtype]));
        inputs.push_back(placed.in[i].data());
    }
    for (Memory const& output : placed.out)
    {
        outDesc.push_back(desc({1, c.rows, c.width}, kTypes[c.dtype]));
        outputs.push_back(output.data());
    }
    IPluginV3OneRuntime* const r = runtime(attached);
    int32_t const shaped = r->onShapeChange(inDesc.data(), c.row().inputCount, outDesc.data(), c.row().outputCount);
    check(shaped == 0, c.label() + ": shape");
    check(r->enqueue(inDesc.data(), outDesc.data(), inputs.data(), outputs.data(), nullptr, nullptr) == 0,
        c.label() + ": enqueue: " + Logger::last());
    placed.compare(budget);
}

// The C interface, which takes the parts of a packed tensor.
void launchOne(Device const& device, Case const& c, PluginLibrary& library, Budget const& budget)
{
    Placed const placed{device, c};
    std::vector<void*> tensors;
    for (int32_t i = 0; i < c.row().inputCount; ++i)
    {
        tensors.push_back(c.packed ? placed.in[0].data() + i * c.width * c.type().bytes : placed.in[i].data());
    }
    for (Memory const& output : placed.out)
    {
        tensors.push_back(output.data());
    }
    auto const launch = library.symbol<decltype(&tblock_plugin_launch)>("tblock_plugin_launch");
    auto const error = library.symbol<decltype(&tblock_plugin_error)>("tblock_plugin_error");
    int64_t const stride = c.packed ? c.row().inputCount * c.width : c.width;
    int32_t const failed
        = launch(c.op, c.dtype, tensors.data(), c.rows, c.width, stride, c.fields.data(), nullptr);
    check(failed == 0, c.label() + ": " + error());
    placed.compare(budget);
    bool const takesStride = c.row().kind == tblock::OpKind::kElementwise;
    int32_t const wider = launch(c.op, c.dtype, tensors.data(), 0, c.width, c.width + 8, c.fields.data(), nullptr);
    check((wider == 0) == takesStride, c.label() + ": a row stride of a rowwise op was accepted");
}

void refusedDevice(PluginLibrary& library, int arch)
{
    for (OpRow const* row : tblock::contract::kRows)
    {
        std::unique_ptr<IPluginV3> const plugin = create(library.creator(row->pluginName), Fields{*row});
        check(runtime(*plugin)->attachToContext(nullptr) == nullptr, "attached below sm_80");
        std::string const wanted = "sm_" + std::to_string(arch);
        check(Logger::last().find(wanted) != std::string::npos, Logger::last() + " lacks " + wanted);
    }
}

void refusedAttach(PluginLibrary& library, std::string const& reason)
{
    std::unique_ptr<IPluginV3> const plugin = create(library.creator(0), Fields{*tblock::contract::kRows[0]});
    check(runtime(*plugin)->attachToContext(nullptr) == nullptr, "attached: " + reason);
    check(Logger::last().find(reason) != std::string::npos, "attach: message " + Logger::last());
}
} // namespace

Executed execute(PluginLibrary& library, std::vector<Case> const& cases, Budget const& budget, bool brief)
{
    Device device;
    std::string const missing = device.open();
    if (!missing.empty())
    {
        refusedAttach(library, "cannot attach");
        return {0, missing};
    }
    int executed = 0;
    for (int ordinal = 0; ordinal < device.count(); ++ordinal)
    {
        int const arch = device.use(ordinal);
        if (arch < 80)
        {
            refusedDevice(library, arch);
            continue;
        }
        for (Case const& c : cases)
        {
            // The second stand-in device is there to see that each context loads its own kernels.
            if ((brief || (device.isFake() && ordinal > 0)) && c.rows * c.width > kBriefElements)
            {
                continue;
            }
            ++executed;
            launchOne(device, c, library, budget);
            if (c.packed)
            {
                continue;
            }
            std::unique_ptr<IPluginV3> const plugin
                = create(library.creator(c.row().pluginName), Fields{c.row(), c.fields}, TensorRTPhase::kRUNTIME);
            std::unique_ptr<IPluginV3> const attached{runtime(*plugin)->attachToContext(nullptr)};
            check(attached != nullptr, std::string{"attach: "} + Logger::last());
            if (attached == nullptr)
            {
                return {executed, {}};
            }
            int const loads = device.loads();
            enqueueOne(device, c, *attached, budget);
            // Other threads attach meanwhile when brief.
            check(brief || device.loads() == loads, "a module was loaded by enqueue");
        }
    }
    device.leave();
    refusedAttach(library, "no CUDA context");
    return {executed, {}};
}
} // namespace harness

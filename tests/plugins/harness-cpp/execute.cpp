#include "check.h"
#include "commands.h"
#include "contract.h"
#include "device.h"
#include "exports.h"
#include "float_types.h"

#include <algorithm>
#include <iterator>
#include <random>

namespace harness
{
namespace
{
using tblock::OpRow;
using tblock::PortShape;

constexpr DataType kTypes[] = {DataType::kFLOAT, DataType::kHALF, DataType::kBF16};
constexpr int64_t kWidths[] = {1, 7, 64, 128, 576, 1000, 1024, 2048, 4096, 4097, 8192, 14336, 16384, 16388, 65536};
constexpr int64_t kRows[] = {1, 19};
constexpr int64_t kGuard = 512; // bytes around every tensor

// Host values of one tensor; on the device it lies between guards of 0xFF, which is NaN in every type.
struct Tensor
{
    FloatType type;
    std::vector<double> values;
    uintptr_t base = 0;

    void* data() const
    {
        return reinterpret_cast<void*>(base + kGuard);
    }
    size_t bytes() const
    {
        return values.size() * type.bytes;
    }
};

// By turns ordinary, +-25000 (squares overflow float16), small (eps matters) and zero rows, rounded to the type.
std::vector<double> makeRows(int64_t rows, int64_t width, FloatType const& type, std::mt19937& random)
{
    std::normal_distribution<double> normal;
    std::vector<double> values(rows * width);
    for (int64_t i = 0; i < rows * width; ++i)
    {
        double const value = normal(random);
        double const kinds[] = {value, value < 0 ? -25000.0 : 25000.0, value * 1e-3, 0.0};
        values[i] = roundTo(kinds[i / width % 4], type);
    }
    return values;
}

void place(Device const& device, Tensor& tensor, bool fill)
{
    std::vector<char> bytes(tensor.bytes() + 2 * kGuard, static_cast<char>(0xFF));
    for (size_t i = 0; fill && i < tensor.values.size(); ++i)
    {
        encode(bytes.data() + kGuard, static_cast<int64_t>(i), tensor.type, tensor.values[i]);
    }
    tensor.base = device.upload(bytes);
}

std::vector<double> normOf(std::vector<double> const& x, std::vector<double> const& weight, int64_t rows, float eps,
    float offset)
{
    int64_t const width = static_cast<int64_t>(weight.size());
    std::vector<double> y(x.size());
    for (int64_t row = 0; row < rows; ++row)
    {
        double squares = 0.0;
        for (int64_t i = row * width; i < (row + 1) * width; ++i)
        {
            squares += x[i] * x[i];
        }
        double const scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);
        for (int64_t col = 0; col < width; ++col)
        {
            y[row * width + col] = x[row * width + col] * scale * (weight[col] + offset);
        }
    }
    return y;
}

// The float64 outputs of a row of the contract.
std::vector<std::vector<double>> reference(
    std::string const& op, std::vector<Tensor> const& in, int64_t rows, float eps, float offset)
{
    if (op == "swiglu")
    {
        std::vector<double> y(in[0].values.size());
        for (size_t i = 0; i < y.size(); ++i)
        {
            double const gate = in[tblock::contract::swiglu::in::kGate].values[i];
            y[i] = gate / (1.0 + std::exp(-gate)) * in[tblock::contract::swiglu::in::kUp].values[i];
        }
        return {y};
    }
    if (op == "rms_norm")
    {
        using namespace tblock::contract::rms_norm;
        return {normOf(in[in::kX].values, in[in::kWeight].values, rows, eps, offset)};
    }
    using namespace tblock::contract::add_rms_norm;
    std::vector<double> sum(in[in::kX].values.size());
    std::vector<double> rounded(sum.size());
    for (size_t i = 0; i < sum.size(); ++i)
    {
        sum[i] = in[in::kX].values[i] + in[in::kResidual].values[i];
        rounded[i] = roundTo(sum[i], in[in::kX].type);
    }
    return {sum, normOf(rounded, in[in::kWeight].values, rows, eps, offset)};
}

// The measure of export/plugins/selfcheck.py: error over the larger of value, row RMS and smallest normal, in units.
double errorUnits(std::vector<double> const& y, std::vector<double> const& wanted, int64_t width, FloatType const& type)
{
    double worst = 0.0;
    for (size_t row = 0; row < y.size(); row += width)
    {
        double squares = 0.0;
        for (size_t i = row; i < row + width; ++i)
        {
            squares += std::isinf(roundTo(wanted[i], type)) ? 0.0 : wanted[i] * wanted[i];
        }
        double const rms = std::sqrt(squares / static_cast<double>(width));
        for (size_t i = row; i < row + width; ++i)
        {
            if (std::isinf(roundTo(wanted[i], type)))
            {
                worst = y[i] == roundTo(wanted[i], type) ? worst : INFINITY;
                continue;
            }
            double const scale = std::max({std::fabs(wanted[i]), rms, smallestNormal(type)});
            double const error = std::fabs(y[i] - wanted[i]) / scale / unitRoundoff(type);
            worst = error <= worst ? worst : error; // NaN counts as worst
        }
    }
    return worst;
}

void compare(Device const& device, std::string const& label, Tensor& output, std::vector<double> const& wanted,
    int64_t width, double budget)
{
    std::vector<char> const bytes = device.download(output.base, output.bytes() + 2 * kGuard);
    for (int64_t i = 0; i < kGuard; ++i)
    {
        bool const clean = bytes[i] == static_cast<char>(0xFF) && bytes[bytes.size() - 1 - i] == static_cast<char>(0xFF);
        if (!clean)
        {
            check(false, label + ": wrote outside the output");
            break;
        }
    }
    for (size_t i = 0; i < output.values.size(); ++i)
    {
        output.values[i] = decode(bytes.data() + kGuard, static_cast<int64_t>(i), output.type);
    }
    double const units = errorUnits(output.values, wanted, width, output.type);
    check(units <= budget, label + ": " + std::to_string(units) + " units, at most " + std::to_string(budget));
}

struct Work
{
    Device const& device;
    Budget const& budget;
    std::mt19937 random{7};
    int cases = 0;

    void enqueueOne(OpRow const& row, IPluginV3& attached, int dtype, int64_t rows, int64_t width, float offset)
    {
        FloatType const& type = kFloatTypes[dtype];
        std::vector<Tensor> in;
        std::vector<Tensor> out;
        std::vector<PluginTensorDesc> inDesc;
        std::vector<PluginTensorDesc> outDesc;
        for (int32_t i = 0; i < row.inputCount; ++i)
        {
            bool const vector = row.inputs[i].shape == PortShape::kVector;
            in.push_back(Tensor{type, makeRows(vector ? 1 : rows, width, type, random)});
            inDesc.push_back(vector ? desc({width}, kTypes[dtype]) : desc({1, rows, width}, kTypes[dtype]));
            place(device, in.back(), true);
        }
        for (int32_t i = 0; i < row.outputCount; ++i)
        {
            out.push_back(Tensor{type, std::vector<double>(rows * width)});
            outDesc.push_back(desc({1, rows, width}, kTypes[dtype]));
            place(device, out.back(), false);
        }
        std::vector<void const*> inputs;
        std::vector<void*> outputs;
        std::transform(in.begin(), in.end(), std::back_inserter(inputs), [](Tensor const& t) { return t.data(); });
        std::transform(out.begin(), out.end(), std::back_inserter(outputs), [](Tensor const& t) { return t.data(); });
        std::string const label = std::string{row.pluginName} + " " + type.name + " " + std::to_string(rows) + "x"
            + std::to_string(width);
        IPluginV3OneRuntime* const r = runtime(attached);
        check(r->onShapeChange(inDesc.data(), row.inputCount, outDesc.data(), row.outputCount) == 0, label + ": shape");
        check(r->enqueue(inDesc.data(), outDesc.data(), inputs.data(), outputs.data(), nullptr, nullptr) == 0,
            label + ": enqueue: " + Logger::last());
        auto const wanted = reference(row.op, in, rows, kEps, offset);
        for (int32_t i = 0; i < row.outputCount; ++i)
        {
            compare(device, label + " " + row.outputs[i].name, out[i], wanted[i], width, budget.units[dtype]);
        }
        for (auto* list : {&in, &out})
        {
            for (Tensor const& tensor : *list)
            {
                device.release(tensor.base);
            }
        }
        ++cases;
    }

    void launchPacked(PluginLibrary& library, int dtype, int64_t rows, int64_t width)
    {
        FloatType const& type = kFloatTypes[dtype];
        Tensor both{type, makeRows(rows, 2 * width, type, random)};
        Tensor gate{type, {}};
        Tensor up{type, {}};
        Tensor y{type, std::vector<double>(rows * width)};
        for (int64_t i = 0; i < rows * width; ++i)
        {
            int64_t const at = i / width * 2 * width + i % width;
            gate.values.push_back(both.values[at]);
            up.values.push_back(both.values[at + width]);
        }
        place(device, both, true);
        place(device, y, false);
        char* const start = static_cast<char*>(both.data());
        void* const tensors[] = {start, start + width * type.bytes, y.data()};
        auto const launch = library.symbol<decltype(&tblock_plugin_launch)>("tblock_plugin_launch");
        auto const error = library.symbol<decltype(&tblock_plugin_error)>("tblock_plugin_error");
        std::string const label = "packed swiglu " + std::to_string(rows) + "x" + std::to_string(width);
        int32_t const op = std::size(tblock::contract::kRows) - 1;
        check(launch(op, dtype, tensors, rows, width, 2 * width, 0.0F, 0.0F, nullptr) == 0, label + ": " + error());
        compare(device, label, y, reference("swiglu", {gate, up}, rows, 0.0F, 0.0F)[0], width, budget.units[dtype]);
        device.release(both.base);
        device.release(y.base);
        ++cases;
    }

    static constexpr float kEps = 1e-5F;
};

void refusedDevice(PluginLibrary& library, int arch)
{
    for (OpRow const* row : tblock::contract::kRows)
    {
        std::unique_ptr<IPluginV3> const plugin = create(library.creator(row->pluginName), Fields{1e-5F, 0.0F});
        check(runtime(*plugin)->attachToContext(nullptr) == nullptr, "attached below sm_80");
        std::string const wanted = "sm_" + std::to_string(arch);
        check(Logger::last().find(wanted) != std::string::npos, Logger::last() + " lacks " + wanted);
    }
}
} // namespace

Executed execute(PluginLibrary& library, Budget const& budget, bool brief)
{
    Device device;
    std::string const missing = device.open();
    if (!missing.empty())
    {
        std::unique_ptr<IPluginV3> const plugin = create(library.creator(0), Fields{1e-5F, 0.0F});
        check(runtime(*plugin)->attachToContext(nullptr) == nullptr, "attached without a driver");
        check(Logger::last().find("cannot attach") != std::string::npos, "attach: message " + Logger::last());
        return {0, missing};
    }
    Work work{device, budget};
    for (int ordinal = 0; ordinal < device.count(); ++ordinal)
    {
        int const arch = device.use(ordinal);
        if (arch < 80)
        {
            refusedDevice(library, arch);
            continue;
        }
        for (OpRow const* row : tblock::contract::kRows)
        {
            for (float const offset : {0.0F, 1.0F})
            {
                std::unique_ptr<IPluginV3> const plugin
                    = create(library.creator(row->pluginName), Fields{Work::kEps, offset}, TensorRTPhase::kRUNTIME);
                std::unique_ptr<IPluginV3> const attached{runtime(*plugin)->attachToContext(nullptr)};
                check(attached != nullptr, std::string{"attach: "} + Logger::last());
                if (attached == nullptr)
                {
                    return {work.cases, {}};
                }
                int const loads = device.loads();
                for (int dtype = 0; dtype < 3; ++dtype)
                {
                    for (int64_t const width : kWidths)
                    {
                        for (int64_t const rows : kRows)
                        {
                            // The stand-in computes on the host: keep it to what a few seconds hold.
                            bool const small = rows * width <= 19 * 2048 && (ordinal == 0 || width < 1000);
                            bool const quick = brief ? width < 2048 && rows > 1 : !device.isFake() || small;
                            if (quick)
                            {
                                work.enqueueOne(*row, *attached, dtype, rows, width, offset);
                            }
                        }
                    }
                }
                // Other threads attach meanwhile when brief.
                check(brief || device.loads() == loads, "a module was loaded by enqueue");
            }
        }
        for (int dtype = 0; dtype < 3; ++dtype)
        {
            for (int64_t const width : {7, 576, 1000, 1536})
            {
                work.launchPacked(library, dtype, 19, width);
            }
        }
    }
    device.leave();
    std::unique_ptr<IPluginV3> const plugin = create(library.creator(0), Fields{1e-5F, 0.0F});
    check(runtime(*plugin)->attachToContext(nullptr) == nullptr, "attached without a context");
    check(Logger::last().find("no CUDA context") != std::string::npos, "attach: message " + Logger::last());
    return {work.cases, {}};
}
} // namespace harness

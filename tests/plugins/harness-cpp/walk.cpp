#include "check.h"
#include "commands.h"
#include "contract.h"

#include <cmath>
#include <functional>
#include <limits>

namespace harness
{
namespace
{
using tblock::OpRow;
using tblock::PortShape;

// A legal set of tensors of one row: inputs, then outputs.
std::vector<std::vector<int64_t>> shapesOf(OpRow const& row, std::vector<int64_t> const& leading)
{
    std::vector<std::vector<int64_t>> shapes;
    for (int32_t i = 0; i < row.inputCount; ++i)
    {
        bool const vector = row.inputs[i].shape == PortShape::kVector;
        shapes.push_back(vector ? std::vector<int64_t>{leading.back()} : leading);
    }
    for (int32_t i = 0; i < row.outputCount; ++i)
    {
        shapes.push_back(leading);
    }
    return shapes;
}

struct Tensors
{
    std::vector<PluginTensorDesc> plain;
    std::vector<DynamicPluginTensorDesc> dynamic;
};

Tensors tensorsOf(std::vector<std::vector<int64_t>> const& shapes, DataType type)
{
    Tensors tensors;
    for (auto const& shape : shapes)
    {
        tensors.plain.push_back(desc(shape, type));
        tensors.dynamic.push_back(harness::dynamic(shape, type));
    }
    return tensors;
}

void expectError(std::string const& label, std::vector<std::string> const& parts)
{
    for (std::string const& part : parts)
    {
        check(Logger::last().find(part) != std::string::npos,
            label + ": message \"" + Logger::last() + "\" lacks \"" + part + "\"");
    }
    Logger::last().clear();
}

using Spoil = std::function<void(PluginField&, tblock::FieldValue&)>;

void walkFields(OpRow const& row, IPluginCreatorV3One* creator)
{
    auto refusedAll = [&](std::string const& label, Fields const& fields, std::vector<std::string> parts) {
        PluginFieldCollection const collection = fields.collection();
        std::unique_ptr<IPluginV3> const plugin{creator->createPlugin("layer7", &collection, TensorRTPhase::kBUILD)};
        check(plugin == nullptr, label + ": accepted");
        parts.insert(parts.end(), {row.pluginName, "layer7"});
        expectError(std::string{row.pluginName} + ", " + label, parts);
    };
    Fields stray{row};
    float const value = 0.5F;
    stray.list.push_back(PluginField{"no_such_field", &value, PluginFieldType::kFLOAT32, 1});
    refusedAll("field of another plugin", stray, {"field no_such_field: unknown"});
    stray.list.back().name = nullptr;
    refusedAll("unnamed field", stray, {"(unnamed)"});
    PluginFieldCollection const broken{2, nullptr};
    check(creator->createPlugin("layer", &broken, TensorRTPhase::kBUILD) == nullptr, "broken collection: accepted");
    expectError("broken collection", {row.pluginName, "broken"});
    std::unique_ptr<IPluginV3> const bare{creator->createPlugin("layer", nullptr, TensorRTPhase::kBUILD)};
    check((bare == nullptr) == (row.fieldCount > 0), "no collection");
    Logger::last().clear();

    for (int32_t i = 0; i < row.fieldCount; ++i)
    {
        tblock::FieldRow const& field = row.fields[i];
        bool const isFloat = field.kind == tblock::FieldKind::kFloat;
        std::string const label = std::string{"field "} + field.name;
        auto refused = [&](std::string const& what, std::string const& message, Spoil const& spoil) {
            Fields fields{row};
            spoil(fields.list[i], fields.values[i]);
            refusedAll(label + " " + what, fields, {label + ": " + message});
        };
        Fields missing{row};
        missing.list.erase(missing.list.begin() + i);
        refusedAll("missing", missing, {label + ": missing"});
        Fields twice{row};
        twice.list.push_back(twice.list[i]);
        refusedAll("twice", twice, {label + ": given twice"});
        refused("of the other type", "field type",
            [&](auto& f, auto&) { f.type = isFloat ? PluginFieldType::kINT32 : PluginFieldType::kFLOAT32; });
        refused("as double", "field type", [](auto& f, auto&) { f.type = PluginFieldType::kFLOAT64; });
        refused("of length 2", "length 2", [](auto& f, auto&) { f.length = 2; });
        refused("of length 0", "length 0", [](auto& f, auto&) { f.length = 0; });
        refused("without data", "no data", [](auto& f, auto&) { f.data = nullptr; });
        for (float const bad : {std::nanf(""), std::numeric_limits<float>::infinity(), 0.0F, -1e-5F, 1e-40F})
        {
            if (isFloat && (field.positive || !std::isfinite(bad)))
            {
                refused(std::to_string(bad), std::to_string(bad) + ": must be finite",
                    [bad](auto&, auto& v) { v.f = bad; });
            }
        }
        if (!isFloat && field.positive)
        {
            refused("0", "0: must be above 0", [](auto&, auto& v) { v.i = 0; });
        }

        // From an address that is no multiple of 4.
        alignas(8) unsigned char bytes[12] = {};
        Fields fields{row};
        std::memcpy(bytes + 1, &fields.values[i], sizeof(fields.values[i]));
        fields.list[i].data = bytes + 1;
        PluginFieldCollection const collection = fields.collection();
        std::unique_ptr<IPluginV3> const plugin{creator->createPlugin("", &collection, TensorRTPhase::kRUNTIME)};
        check(plugin != nullptr, label + ", unaligned: refused");
    }
}

void walkSerialization(OpRow const& row, IPluginCreatorV3One* creator)
{
    for (float const number : {1e-5F, 1e-6F, 0.1F, std::numeric_limits<float>::min()})
    {
        Fields fields{row};
        for (int32_t i = 0; i < row.fieldCount; ++i)
        {
            // Different ones, so that none can stand in for another; -0 must keep its sign.
            float const value = row.fields[i].positive ? number : i > 1 ? number * static_cast<float>(i) : -0.0F;
            row.fields[i].kind == tblock::FieldKind::kFloat ? (void)(fields.values[i].f = value)
                                                            : (void)(fields.values[i].i = 7 + i);
        }
        std::unique_ptr<IPluginV3> const plugin = create(creator, fields);
        check(plugin != nullptr, "creation");
        std::unique_ptr<IPluginV3> const copy{plugin->clone()};
        PluginFieldCollection const* const stored = runtime(*copy)->getFieldsToSerialize();
        std::unique_ptr<IPluginV3> const again{creator->createPlugin("", stored, TensorRTPhase::kRUNTIME)};
        check(again != nullptr, "recreation from serialized fields");
        PluginFieldCollection const* const last = runtime(*again)->getFieldsToSerialize();
        check(last->nbFields == row.fieldCount && stored->nbFields == row.fieldCount, "serialized field count");
        for (int32_t i = 0; i < row.fieldCount; ++i)
        {
            PluginField const& field = last->fields[i];
            bool const same = std::strcmp(field.name, row.fields[i].name) == 0 && field.length == 1
                && field.type == fields.list[i].type
                && std::memcmp(field.data, &fields.values[i], sizeof(fields.values[i])) == 0;
            check(same, std::string{"exact serialization of "} + row.fields[i].name);
        }
    }
}

void walkBuild(OpRow const& row, IPluginV3& plugin)
{
    IPluginV3OneBuild* const b = build(plugin);
    int32_t const in = row.inputCount;
    int32_t const out = row.outputCount;
    std::string const name = row.pluginName;
    check(std::strcmp(core(plugin)->getPluginName(), row.pluginName) == 0, name + ": name");
    check(std::strcmp(core(plugin)->getPluginVersion(), row.version) == 0, name + ": version");
    check(std::strcmp(core(plugin)->getPluginNamespace(), tblock::contract::kNamespace) == 0, name + ": namespace");
    check(b->getNbOutputs() == out, name + ": outputs");

    std::vector<DataType> types(in, DataType::kBF16);
    std::vector<DataType> results(out, DataType::kINT8);
    check(b->getOutputDataTypes(results.data(), out, types.data(), in) == 0, name + ": output types");
    for (DataType const type : results)
    {
        check(type == DataType::kBF16, name + ": output type");
    }
    check(b->getOutputDataTypes(results.data(), out, types.data(), in + 1) != 0, name + ": too many inputs accepted");
    expectError("input count", {name, "inputs"});

    // Symbolic leading dims pass through as the very same expressions.
    Dimension const batch{-1};
    Dimension const length{-1};
    Dimension const width{576};
    Expressions expressions;
    std::vector<DimsExprs> inputs(in);
    std::vector<DimsExprs> outputs(out);
    for (int32_t i = 0; i < in; ++i)
    {
        bool const vector = row.inputs[i].shape == PortShape::kVector;
        inputs[i].nbDims = vector ? 1 : 3;
        inputs[i].d[0] = vector ? &width : &batch;
        inputs[i].d[1] = &length;
        inputs[i].d[2] = &width;
    }
    check(b->getOutputShapes(inputs.data(), in, nullptr, 0, outputs.data(), out, expressions) == 0, name + ": shapes");
    for (DimsExprs const& output : outputs)
    {
        bool const same
            = output.nbDims == 3 && output.d[0] == &batch && output.d[1] == &length && output.d[2] == &width;
        check(same, name + ": output shape");
    }
    check(expressions.uses() == 0, name + ": needs no expressions");
    inputs[in - 1].nbDims = 2;
    check(b->getOutputShapes(inputs.data(), in, nullptr, 0, outputs.data(), out, expressions) != 0,
        name + ": wrong rank accepted");
    expectError("rank", {name, row.inputs[in - 1].name, "rank 2"});

    for (DataType const type : {DataType::kFLOAT, DataType::kHALF, DataType::kBF16, DataType::kINT8, DataType::kINT32})
    {
        bool const wanted = type == DataType::kFLOAT || type == DataType::kHALF || type == DataType::kBF16;
        Tensors tensors = tensorsOf(shapesOf(row, {2, 7, 576}), type);
        for (int32_t pos = 0; pos < in + out; ++pos)
        {
            check(b->supportsFormatCombination(pos, tensors.dynamic.data(), in, out) == wanted, name + ": dtype");
            tensors.dynamic[pos].desc.format = TensorFormat::kHWC8;
            check(!b->supportsFormatCombination(pos, tensors.dynamic.data(), in, out), name + ": format accepted");
            tensors.dynamic[pos].desc.format = TensorFormat::kLINEAR;
        }
        tensors.dynamic[in + out - 1].desc.type = type == DataType::kHALF ? DataType::kFLOAT : DataType::kHALF;
        check(!b->supportsFormatCombination(in + out - 1, tensors.dynamic.data(), in, out), name + ": mixed dtypes");
        check(!b->supportsFormatCombination(in + out, tensors.dynamic.data(), in, out), name + ": position accepted");
        check(b->getWorkspaceSize(tensors.dynamic.data(), in, tensors.dynamic.data() + in, out) == 0, name + ": space");
    }
}

void walkShapes(OpRow const& row, IPluginV3& plugin)
{
    int32_t const in = row.inputCount;
    int32_t const out = row.outputCount;
    std::string const name = row.pluginName;
    auto run = [&](Tensors& t) {
        int32_t const built = build(plugin)->configurePlugin(t.dynamic.data(), in, t.dynamic.data() + in, out);
        int32_t const ran = runtime(plugin)->onShapeChange(t.plain.data(), in, t.plain.data() + in, out);
        check((built == 0) == (ran == 0), name + ": build and run disagree on a shape");
        return built == 0;
    };
    using Shape = std::vector<int64_t>;
    for (Shape const& good : {Shape{576}, Shape{1, 1, 1}, Shape{0, 7, 64}, Shape{2, 3, 5, 7, 65536}})
    {
        Tensors tensors = tensorsOf(shapesOf(row, good), DataType::kBF16);
        check(run(tensors), name + ": legal shape refused: " + Logger::last());
    }
    auto refused = [&](std::string const& label, Tensors tensors, std::vector<std::string> parts) {
        check(!run(tensors), name + ": " + label + " accepted");
        parts.push_back(name);
        expectError(name + ", " + label, parts);
    };
    Tensors const good = tensorsOf(shapesOf(row, {2, 7, 576}), DataType::kFLOAT);
    char const* const first = row.inputs[0].name;
    refused("no columns", tensorsOf(shapesOf(row, {2, 0}), DataType::kHALF), {first, "at least 1"});
    refused("negative", tensorsOf(shapesOf(row, {-1, 576}), DataType::kHALF), {first, "out of range"});
    refused("overflow", tensorsOf(shapesOf(row, {int64_t{1} << 40, int64_t{1} << 20, 576}), DataType::kHALF),
        {first, "out of range"});
    refused("int8", tensorsOf(shapesOf(row, {2, 576}), DataType::kINT8), {first, "dtype"});
    Tensors wide = tensorsOf(shapesOf(row, {2, 65537}), DataType::kHALF);
    if (row.maxWidth < 65537)
    {
        refused("too wide", wide, {first, "65537", std::to_string(row.maxWidth)});
    }
    else
    {
        check(run(wide), name + ": wide row refused");
    }
    for (int32_t i = 1; i < in + out; ++i)
    {
        char const* const port = i < in ? row.inputs[i].name : row.outputs[i - in].name;
        Tensors tensors = good;
        tensors.plain[i].dims.d[0] += 1;
        tensors.dynamic[i].max = tensors.plain[i].dims;
        refused(std::string{port} + " of another size", tensors, {port, "shape", "wanted"});
        tensors = good;
        tensors.plain[i].type = tensors.dynamic[i].desc.type = DataType::kHALF;
        refused(std::string{port} + " of another dtype", tensors, {port, "dtype"});
        tensors = good;
        tensors.plain[i].format = tensors.dynamic[i].desc.format = TensorFormat::kCHW32;
        refused(std::string{port} + " of another format", tensors, {port, "format"});
    }
    Tensors tensors = good;
    check(runtime(plugin)->onShapeChange(tensors.plain.data(), in - 1, tensors.plain.data(), out) != 0,
        name + ": missing input accepted");
    expectError("missing input", {name, "wanted"});
}
} // namespace

void walk(PluginLibrary& library)
{
    for (OpRow const* row : tblock::contract::kRows)
    {
        IPluginCreatorV3One* const creator = library.creator(row->pluginName);
        walkFields(*row, creator);
        walkSerialization(*row, creator);
        std::unique_ptr<IPluginV3> const plugin = create(creator, Fields{*row});
        std::unique_ptr<IPluginV3> const copy{plugin->clone()};
        for (IPluginV3* each : {plugin.get(), copy.get()})
        {
            walkBuild(*row, *each);
            walkShapes(*row, *each);
        }
        PluginTensorDesc const empty = desc({1});
        check(runtime(*plugin)->enqueue(&empty, &empty, nullptr, nullptr, nullptr, nullptr) != 0,
            "enqueue before attach succeeded");
        expectError("enqueue", {row->pluginName, "before attachToContext"});
    }
}
} // namespace harness

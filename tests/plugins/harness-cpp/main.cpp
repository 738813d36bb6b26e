// Plays TensorRT's part for the plugin library.
//   plugin_harness LIBRARY describe            creators, fields and versions as JSON
//   plugin_harness LIBRARY walk THREADS        build and runtime interfaces, good and bad input
//   plugin_harness LIBRARY execute THREADS CASES F32 F16 BF16   attach, enqueue, compare; budgets in unit roundoffs
//   plugin_harness LIBRARY select < lines      variant index for each "op dtype rows width alignment"
// Exit status: 0 all checks hold, 1 some failed, 2 wrong use, 3 not executed (no CUDA driver or device).
#include "check.h"
#include "commands.h"
#include "exports.h"

#include <cstdlib>
#include <functional>
#include <iostream>
#include <thread>

namespace
{
using namespace harness;

void describe(PluginLibrary const& library)
{
    std::printf("[");
    for (int32_t i = 0; i < library.count(); ++i)
    {
        IPluginCreatorV3One* const creator = library.creator(i);
        std::unique_ptr<IPluginV3> const plugin = create(creator, Fields{*tblock::contract::kRows[i]});
        InterfaceInfo const info = creator->getInterfaceInfo();
        std::printf("%s{\"name\": \"%s\", \"version\": \"%s\", \"namespace\": \"%s\", \"interface\": \"%s %d.%d\", "
                    "\"outputs\": %d, \"fields\": [",
            i > 0 ? ", " : "", creator->getPluginName(), creator->getPluginVersion(), creator->getPluginNamespace(),
            info.kind, info.major, info.minor, build(*plugin)->getNbOutputs());
        PluginFieldCollection const* const fields = creator->getFieldNames();
        for (int32_t f = 0; f < fields->nbFields; ++f)
        {
            std::printf("%s{\"name\": \"%s\", \"type\": %d, \"length\": %d}", f > 0 ? ", " : "",
                fields->fields[f].name, static_cast<int>(fields->fields[f].type), fields->fields[f].length);
        }
        std::printf("]}");
    }
    std::printf("]\n");
}

void select(PluginLibrary const& library)
{
    auto const choose = library.symbol<decltype(&tblock_plugin_select)>("tblock_plugin_select");
    int32_t op = 0;
    int32_t dtype = 0;
    int64_t rows = 0;
    int64_t width = 0;
    int64_t alignment = 0;
    while (std::cin >> op >> dtype >> rows >> width >> alignment)
    {
        std::printf("%d\n", choose(op, dtype, rows, width, alignment));
    }
}

void onThreads(int count, std::function<void()> const& work)
{
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i)
    {
        threads.emplace_back(work);
    }
    for (std::thread& thread : threads)
    {
        thread.join();
    }
}

int run(int argc, char** argv)
{
    std::string const command = argc > 2 ? argv[2] : "";
    bool const threaded = command == "walk" || command == "execute";
    if (argc < 3 || (threaded && argc < 4) || (command == "execute" && argc < 8))
    {
        std::fprintf(stderr, "usage: plugin_harness LIBRARY describe|walk THREADS|execute THREADS CASES F32 F16 BF16|select\n");
        return 2;
    }
    PluginLibrary library{argv[1]};
    int const threads = threaded ? std::atoi(argv[3]) : 1;
    std::string notExecuted;
    std::mutex mutex;
    if (command == "describe")
    {
        describe(library);
    }
    else if (command == "select")
    {
        select(library);
    }
    else if (command == "walk")
    {
        onThreads(threads, [&] { walk(library); });
    }
    else if (command == "execute")
    {
        Budget const budget{{std::atof(argv[5]), std::atof(argv[6]), std::atof(argv[7])}};
        std::vector<Case> const cases = readCases(argv[4]);
        int executed = 0;
        onThreads(threads, [&] {
            Executed const done = execute(library, cases, budget, threads > 1);
            std::lock_guard<std::mutex> const lock{mutex};
            executed += done.cases;
            notExecuted = done.notExecuted;
        });
        std::string const outcome = notExecuted.empty() ? std::to_string(executed) + " cases" : notExecuted;
        std::printf("%s: %s\n", notExecuted.empty() ? "executed" : "not executed", outcome.c_str());
        std::printf("PTX fallback: %s\n", library.logger().heard("loaded PTX") ? "yes" : "no");
    }
    else
    {
        std::fprintf(stderr, "unknown command %s\n", command.c_str());
        return 2;
    }
    if (threaded)
    {
        std::printf("checks: %d, failed: %d\n", gChecks.load(), gFailures.load());
    }
    return gFailures.load() > 0 ? 1 : notExecuted.empty() ? 0 : 3;
}
} // namespace

int main(int argc, char** argv)
{
    try
    {
        return run(argc, argv);
    }
    catch (std::exception const& error)
    {
        std::fprintf(stderr, "plugin_harness: %s\n", error.what());
        return 1;
    }
}

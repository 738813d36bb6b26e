#pragma once

#include "plugin_library.h"

namespace harness
{
// Walks every creator through TensorRT's build and runtime interfaces, with good and bad fields and shapes.
void walk(PluginLibrary& library);

// Most allowed error per dtype id, in unit roundoffs (from export/plugins/selfcheck.py).
struct Budget
{
    double units[3];
};

struct Executed
{
    int cases;
    std::string notExecuted; // why not, or empty
};

// Attaches, enqueues over shapes and dtypes on every device, and compares with float64; below sm_80, checks the refusal.
// Brief: fewer shapes.
Executed execute(PluginLibrary& library, Budget const& budget, bool brief);
} // namespace harness

#pragma once

#include "cases.h"
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

// Attaches, enqueues every case on every device, and compares with float64; below sm_80, checks the refusal.
// Brief: only small cases.
Executed execute(PluginLibrary& library, std::vector<Case> const& cases, Budget const& budget, bool brief);
} // namespace harness

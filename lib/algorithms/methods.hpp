// Declares every method of methods.inc: `Method method_foo()` of stem foo.cpp.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

#define KVBENCH_METHOD(stem) Method method_##stem();
#include "algorithms/methods.inc"
#undef KVBENCH_METHOD

}  // namespace kvbench

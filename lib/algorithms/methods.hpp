// Declares every method of methods.inc: `method_foo::make()` of stem foo.cpp.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

#define KVBENCH_METHOD(stem) \
  namespace method_##stem {  \
    Method make();           \
  }
#include "algorithms/methods.inc"
#undef KVBENCH_METHOD

}  // namespace kvbench

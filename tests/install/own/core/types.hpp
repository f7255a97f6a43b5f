// A header of a program that uses kvbench: no header of kvbench's may find it in place of its own.
#pragma once

namespace consumer {
constexpr bool own_header = true;
}

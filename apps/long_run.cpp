#include "long_run.hpp"

#include <fmt/format.h>

#include <charconv>
#include <csignal>
#include <utility>

#include "core/error.hpp"

namespace kvbench {
namespace {

std::atomic<bool> stop_requested = false;

extern "C" void request_stop(int signal) {
  if (stop_requested.exchange(true)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

std::uint64_t parse_memory_limit(const std::string& text) {
  double x = 0.0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, x);
  const std::string unit(rest, end);
  double factor = 0.0;
  for (const auto& [name, value] :
       {std::pair{"", 1.0}, {"K", 0x1p10}, {"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}}) {
    factor = unit == name ? value : factor;
  }
  if (error != std::errc() || factor == 0.0 || !(x > 0.0) || !(x * factor < 0x1p60)) {
    throw InputError(
        fmt::format("--memory-limit: got '{}', expected bytes, or a number with K, M, G or T "
                    "(powers of 1024)",
                    text));
  }
  return static_cast<std::uint64_t>(x * factor);
}

const std::atomic<bool>& stop_on_signals() {
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  return stop_requested;
}

}  // namespace kvbench

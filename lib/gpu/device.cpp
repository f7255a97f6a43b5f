#include "gpu/device.hpp"

#include <fmt/format.h>

#include <string_view>

#include "core/error.hpp"
#include "core/parse_number.hpp"

namespace kvbench {

std::string DeviceChoice::text() const {
  return cuda ? fmt::format("cuda:{}", ordinal) : "cpu";
}

DeviceChoice choose_device(const std::string& text) {
  if (text == "cpu") {
    return {};
  }
  if (text == "auto") {
    try {
      device_info(0);
      return {true, 0};
    } catch (const IoError&) {
      return {};
    }
  }
  DeviceChoice out{true, 0};
  std::string_view rest = text;
  bool good = rest.substr(0, 4) == "cuda";
  if (good && rest.size() > 4) {
    rest.remove_prefix(5);
    good = text[4] == ':' && parse_number(rest, out.ordinal) && out.ordinal >= 0;
  }
  if (!good) {
    throw InputError(fmt::format("--device: got '{}', expected cpu, cuda, cuda:i or auto", text));
  }
  device_info(out.ordinal);
  return out;
}

std::uint64_t device_head_bytes(Index n, Index d, Index dv, Index group, Index nq) {
  return static_cast<std::uint64_t>(4 * (n * (d + dv) + group * nq * d));
}

std::uint64_t device_job_bytes(Index n, Index d, Index group) {
  return static_cast<std::uint64_t>(8 * n * (d + 16 + 2 * group));
}

std::uint64_t device_rows_bytes(Index n, Index d) {
  return static_cast<std::uint64_t>(4 * n * d);
}

std::uint64_t device_rows_task_bytes(Index n, Index d) {
  // Six numbers per row: k-center with every row a centre, or online clusters with their batch.
  // Also the mean and the total of a covariance.
  return static_cast<std::uint64_t>(8 * (6 * n + d * d + d) + (Index{1} << 17));
}

std::uint64_t device_rows_min_scratch(Index d) {
  return static_cast<std::uint64_t>(8 * d * d);
}

#if !defined(KVBENCH_HAVE_CUDA)

namespace {

[[noreturn]] void reject(int ordinal) {
  throw IoError(
      fmt::format("--device cuda:{}: built without CUDA, expected --device cpu, or "
                  "a build with KVBENCH_CUDA=ON",
                  ordinal));
}

}  // namespace

DeviceInfo device_info(int ordinal) {
  reject(ordinal);
}

std::unique_ptr<Backend> open_gpu(const KvHead& /*head*/, int ordinal,
                                  std::size_t /*scratch_bytes*/) {
  reject(ordinal);
}

std::unique_ptr<RowSet> open_gpu_rows(MatrixView /*rows*/, int ordinal,
                                      std::size_t /*scratch_bytes*/) {
  reject(ordinal);
}

#endif

}  // namespace kvbench

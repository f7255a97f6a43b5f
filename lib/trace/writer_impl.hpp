// Internal to lib/trace: what a TraceWriter holds, for the two files that implement it.
#pragma once

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "trace/hdf5_util.hpp"
#include "trace/writer.hpp"

namespace kvbench {

namespace h5 {

/// One q, k or v dataset that is being written.
struct Output {
  Handle id;
  const char* name = "";
  std::array<Index, 3> shape{};
  std::vector<bool> written;  // per head
};

}  // namespace h5

struct TraceWriter::Impl {
  std::string path;
  std::string partial;
  TraceHeader header;
  h5::Handle file;
  h5::Handle prompts;
  h5::Handle layers;
  Index n = 0;
  bool prompt_has_layer = false;
  bool any_prompt = false;
  std::optional<LayerSpec> layer;
  h5::Handle layer_group;
  h5::Output q, k, v;

  ~Impl();
  [[noreturn]] void misuse(const std::string& what) const {
    throw InputError(h5::one_line(fmt::format("{}: {}", path, what)));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw IoError(h5::one_line(
        fmt::format("{}: {} cannot be written ({})", partial, what, h5::last_error())));
  }

  void string_attribute(hid_t object, const char* name, std::string_view text) const;
  void attribute(hid_t object, const char* name, hid_t type, hid_t memory, const void* value,
                 hsize_t count = 0) const;
  h5::Handle group(hid_t parent, const std::string& name) const;
  h5::Output create(hid_t parent, const char* name, Index heads, Index rows, Index width) const;
  void finish_layer();
  void write(h5::Output& out, Index head, MatrixView m);
  // Misuse unless a layer is open that has no dataset of that name.
  void expect_new(std::string_view name) const;
  // Misuse if a value is not finite once it is rounded to the file's type.
  void check_finite(std::string_view what, MatrixView m) const;
};

}  // namespace kvbench

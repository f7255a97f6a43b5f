#include "trace/file_kinds.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "trace/caches.hpp"
#include "trace/canary.hpp"
#include "trace/input_file.hpp"
#include "trace/schema.hpp"
#include "trace/synth.hpp"

namespace kvbench {
namespace {

// An HDF5 file whose root has these attributes.
FileKind hdf5_kind(std::string name, std::vector<std::pair<const char*, std::string>> texts) {
  const auto matches = [texts = std::move(texts)](const std::filesystem::path& path) {
    try {
      const h5::InputFile file(path.string(), "a file of kvbench");
      return h5::read_guarded(file, [&](const h5::Hdf5Object& root) {
        return std::ranges::all_of(texts, [&](const auto& text) {
          return h5::optional_string(root, text.first) == text.second;
        });
      });
    } catch (const Error&) {
      return false;
    }
  };
  // Before HDF5 writes its signature the file is empty or zero.
  const auto begins = [](std::string_view bytes) {
    constexpr std::string_view signature = "\x89HDF\r\n\x1a\n";
    return signature.starts_with(bytes.substr(0, signature.size())) ||
           std::ranges::all_of(bytes, [](char c) { return c == '\0'; });
  };
  return {std::move(name), matches, begins};
}

}  // namespace

FileKind synthetic_trace_kind() {
  return hdf5_kind("a synthetic trace",
                   {{"format", std::string(schema::kFormat)}, {"model", std::string(kSynthModel)}});
}

FileKind caches_kind() {
  return hdf5_kind("a caches file", {{"format", std::string(caches::kFormat)}});
}

}  // namespace kvbench

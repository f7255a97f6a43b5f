// Internal to lib/trace: an InputFile as HDF5 reads it. Everything here must be called within a
// Session, one file at a time, and nowhere but in what read_guarded (canary.hpp) is given.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "trace/hdf5_util.hpp"
#include "trace/input_file.hpp"
#include "trace/storage.hpp"

namespace kvbench::h5 {

/// An open file. HDF5 reads through the InputFile's descriptor and can open no other file, neither
/// the target of an external link nor the source of a virtual dataset.
class Hdf5File {
 public:
  /// Throws InputError if HDF5 cannot open it.
  explicit Hdf5File(const InputFile& file);

  hid_t id() const { return id_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Counts an object that is opened; false above the limit. Links can multiply objects.
  bool count_object();

  /// All datasets so far, by address, each once however many links lead to it.
  std::map<haddr_t, std::shared_ptr<Dataset>> datasets;

 private:
  Handle id_;
  std::uint64_t bytes_;
  std::uint64_t objects_ = 0;
};

/// The chunk of an open dataset that begins at `corner`, or nothing.
std::optional<Chunk> find_chunk(hid_t dataset, const std::vector<hsize_t>& corner);

/// Processor time of one step, an object or some chunks. Far above what any takes: a stalled
/// virtual machine is charged for its stall.
inline constexpr std::chrono::seconds kStepTime{4};
/// From now on a step that takes more ends the process by SIGPROF. Begins the first step.
void limit_steps();
void begin_step();

}  // namespace kvbench::h5

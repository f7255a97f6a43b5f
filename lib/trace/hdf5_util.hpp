// Internal to lib/trace: handles on top of the HDF5 C API.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/types.hpp"
#include "trace/refuse.hpp"

namespace kvbench::h5 {

// HDF5 1.12 gave the old name to another struct.
#if H5_VERSION_GE(1, 12, 0)
using LinkInfo = H5L_info2_t;
#else
using LinkInfo = H5L_info_t;
#endif

/// Owns one HDF5 identifier and converts to it. Invalid (negative) identifiers test false.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Handle() { reset(); }
  Handle(Handle&& o) noexcept : id_(std::exchange(o.id_, -1)), close_(o.close_) {}
  Handle& operator=(Handle&& o) noexcept;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  operator hid_t() const { return id_; }  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return id_ >= 0; }
  /// Closes now; false if HDF5 reports a failure.
  bool reset();
  /// Forgets it without closing.
  void release() { id_ = -1; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// A lock on HDF5, which is not re-entrant and prints no error stacks meanwhile. Every public
/// function of lib/trace that calls HDF5 holds it, so its callers must not.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t handler_ = nullptr;
  void* data_ = nullptr;
};

/// HDF5's last error: its innermost message.
std::string last_error();

/// Whether a link of that name exists.
bool has_link(hid_t parent, std::string_view name);
/// Names of all links of a group, ascending; none if HDF5 fails or a group has more than a
/// million, far above any of ours.
std::optional<std::vector<std::string>> link_names(hid_t group);

/// A dataspace of these sizes.
Handle make_space(const std::vector<Index>& sizes);

/// The HDF5 type of stored elements, little-endian: IEEE half, uint16 (bfloat16) or IEEE single.
Handle file_type(DType type);

}  // namespace kvbench::h5

#include "trace/hdf5_util.hpp"

#include <cstddef>

namespace kvbench::h5 {

namespace {

std::mutex& mutex() {
  static std::mutex one;
  return one;
}

herr_t keep_innermost(unsigned /*depth*/, const H5E_error2_t* error, void* out) {
  // No exception may pass through HDF5.
  try {
    auto& text = *static_cast<std::string*>(out);
    if (text.empty() && error->desc != nullptr) {
      text = error->desc;
    }
  } catch (...) {
    return -1;
  }
  return 0;
}

herr_t collect_link(hid_t /*group*/, const char* name, const LinkInfo* /*info*/, void* out) {
  constexpr std::size_t kMaxLinks = 1000000;
  try {
    auto& names = *static_cast<std::vector<std::string>*>(out);
    names.emplace_back(name);
    return names.size() > kMaxLinks ? -1 : 0;
  } catch (...) {  // none may pass through HDF5
    return -1;
  }
}

}  // namespace

Handle& Handle::operator=(Handle&& o) noexcept {
  if (this != &o) {
    reset();
    id_ = std::exchange(o.id_, -1);
    close_ = o.close_;
  }
  return *this;
}

bool Handle::reset() {
  const bool closed = id_ < 0 || close_ == nullptr || close_(id_) >= 0;
  id_ = -1;
  return closed;
}

Session::Session() : lock_(mutex()) {
  // At exit HDF5 would close files after a failed write, and crash (output_file.hpp). The call
  // fails if HDF5 was used before.
  [[maybe_unused]] static const herr_t no_exit_handler = H5dont_atexit();
  // No filter is loaded from a file that the environment names.
  [[maybe_unused]] static const herr_t no_plugins = H5PLset_loading_state(0);
  H5Eget_auto2(H5E_DEFAULT, &handler_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Session::~Session() {
  H5Eset_auto2(H5E_DEFAULT, handler_, data_);
}

std::string last_error() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &text);
  if (text.find("version number for layout message") != std::string::npos) {
    text += ": written by HDF5 2.0 with libver=latest; write the datasets again without it";
  }
  return text.empty() ? "HDF5 gives no reason" : one_line(text);
}

bool has_link(hid_t parent, std::string_view name) {
  return H5Lexists(parent, std::string(name).c_str(), H5P_DEFAULT) > 0;
}

std::optional<std::vector<std::string>> link_names(hid_t group) {
  std::vector<std::string> names;
  hsize_t at = 0;
  const herr_t status = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, &at, collect_link, &names);
  return status < 0 ? std::nullopt : std::optional(std::move(names));
}

Handle make_space(const std::vector<Index>& sizes) {
  const std::vector<hsize_t> dims(sizes.begin(), sizes.end());
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
}

Handle file_type(DType type) {
  switch (type) {
    case DType::bfloat16: return {H5Tcopy(H5T_STD_U16LE), H5Tclose};
    case DType::float32: return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
    case DType::float16: break;
  }
  // HDF5 1.10 has no name for half; this is the type that h5py gives numpy's float16.
  Handle half(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(half, 15, 10, 5, 0, 10);
  H5Tset_size(half, 2);
  H5Tset_ebias(half, 15);
  return half;
}

}  // namespace kvbench::h5

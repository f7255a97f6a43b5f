#include "cluster/points_file.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/error.hpp"

namespace kvbench {
namespace {

// One HDF5 identifier, closed at the end of its scope.
struct Object {
  using Close = herr_t (*)(hid_t);

  Object(hid_t identifier, Close closer) : id(identifier), close(closer) {}
  ~Object() { reset(); }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  bool reset() {
    const bool good = id < 0 || close(id) >= 0;
    id = -1;
    return good;
  }

  hid_t id;
  Close close;
};

// HDF5 prints no stacks of errors: the line that is thrown says what there is to say.
struct Quiet {
  Quiet() {
    H5Eget_auto2(H5E_DEFAULT, &handler, &data);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Quiet() { H5Eset_auto2(H5E_DEFAULT, handler, data); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

  H5E_auto2_t handler = nullptr;
  void* data = nullptr;
};

hid_t text_type() {
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

template <std::size_t Rank>
bool put(hid_t group, const char* name, hid_t type, const std::array<hsize_t, Rank>& dims,
         const void* values) {
  const Object space(H5Screate_simple(static_cast<int>(Rank), dims.data(), nullptr), H5Sclose);
  Object data(H5Dcreate2(group, name, type, space.id, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
              H5Dclose);
  return data.id >= 0 && H5Dwrite(data.id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0 &&
         data.reset();
}

bool put_attribute(hid_t object, const char* name, hid_t type, const void* value) {
  const Object space(H5Screate(H5S_SCALAR), H5Sclose);
  const Object attribute(H5Acreate2(object, name, type, space.id, H5P_DEFAULT, H5P_DEFAULT),
                         H5Aclose);
  return attribute.id >= 0 && H5Awrite(attribute.id, type, value) >= 0;
}

}  // namespace

struct PointsFile::Impl {
  std::string path;
  std::string temporary;
  Object file;
  Object text;

  explicit Impl(const std::string& where)
      : path(where),
        temporary(where + ".tmp"),
        file(H5Fcreate(temporary.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose),
        text(text_type(), H5Tclose) {}

  [[noreturn]] void fail(std::string_view what) const {
    throw IoError(fmt::format("{}: cannot {}", temporary, what));
  }
};

PointsFile::PointsFile(const std::string& path) {
  const Quiet quiet;
  impl_ = std::make_unique<Impl>(path);
  const char* format = "kvbench-points";
  const std::int64_t version = 1;
  if (impl_->file.id < 0) {
    impl_->fail("create it");
  }
  if (!put_attribute(impl_->file.id, "format", impl_->text.id, &format) ||
      !put_attribute(impl_->file.id, "version", H5T_NATIVE_INT64, &version)) {
    impl_->fail("write its attributes");
  }
}

PointsFile::~PointsFile() {
  const Quiet quiet;
  const bool unfinished = impl_->file.id >= 0;
  impl_->file.reset();
  if (unfinished) {
    std::error_code ignored;
    std::filesystem::remove(impl_->temporary, ignored);
  }
}

void PointsFile::add(const std::string& group, const Points& points) {
  const Quiet quiet;
  const Object links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.id, 1);
  const Object place(H5Gcreate2(impl_->file.id, group.c_str(), links.id, H5P_DEFAULT, H5P_DEFAULT),
                     H5Gclose);
  const std::array<hsize_t, 1> rows{points.tokens.size()};
  const std::array<hsize_t, 2> shape{rows[0], static_cast<hsize_t>(points.x.cols())};
  const std::vector<std::uint8_t> flags(points.is_center.begin(), points.is_center.end());
  std::vector<const char*> kept_by;
  for (const std::string& labels : points.kept_by) {
    kept_by.push_back(labels.c_str());
  }
  // Flushed, so that what a later head may meet (a full disk, say) is met by that head.
  const bool written = place.id >= 0 &&
                       put(place.id, "token", H5T_NATIVE_INT64, rows, points.tokens.data()) &&
                       put(place.id, "is_center", H5T_NATIVE_UINT8, rows, flags.data()) &&
                       put(place.id, "kept_by", impl_->text.id, rows, kept_by.data()) &&
                       put(place.id, "x", H5T_NATIVE_FLOAT, shape, points.x.data()) &&
                       H5Fflush(impl_->file.id, H5F_SCOPE_LOCAL) >= 0;
  if (!written) {
    impl_->fail(fmt::format("write group {}", group));
  }
}

void PointsFile::close() {
  const Quiet quiet;
  std::error_code error;
  if (!impl_->file.reset()) {
    impl_->fail("close it");
  }
  std::filesystem::rename(impl_->temporary, impl_->path, error);
  if (error) {
    impl_->fail(fmt::format("rename it: {}", error.message()));
  }
}

}  // namespace kvbench

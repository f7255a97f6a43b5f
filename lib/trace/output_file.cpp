#include "trace/output_file.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/files.hpp"
#include "trace/schema.hpp"

namespace kvbench::h5 {

Handle text_type() {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

OutputFile::OutputFile(const std::string& path)
    : path_(resolved_path(path).string()), partial_(partial_path(path_)) {
  // Truncating would empty the target of a link of this name.
  std::remove(partial_.path().c_str());
  file_ =
      Handle(H5Fcreate(partial_.path().c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  if (!file_) {
    partial_.keep();  // not ours
    fail("file");
  }
}

OutputFile::~OutputFile() {
  if (!file_ && !failed_) {
    return;  // finished
  }
  const Session session;
  if (failed_ || H5Fflush(file_, H5F_SCOPE_LOCAL) < 0) {
    file_.release();
    std::error_code ignored;  // frees the disk space of the open file
    std::filesystem::resize_file(partial_.path(), 0, ignored);
  } else {
    file_.reset();
  }
}

void OutputFile::close(Handle object, std::string_view what) const {
  if (!object.reset()) {
    fail(what);
  }
}

void OutputFile::fail(std::string_view what) const {
  failed_ = true;
  raise<IoError>("{}: {} cannot be written ({})", partial_path(path_).string(), what, last_error());
}

Handle OutputFile::group(hid_t parent, std::string_view path) const {
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links, 1);
  Handle g(H5Gcreate2(parent, std::string(path).c_str(), links, H5P_DEFAULT, H5P_DEFAULT),
           H5Gclose);
  if (!g) {
    fail(fmt::format("group {}", path));
  }
  return g;
}

void OutputFile::put(hid_t object, const char* name, hid_t type, const void* value,
                     std::optional<std::size_t> count) const {
  const Handle space =
      count ? make_space({static_cast<Index>(*count)}) : Handle(H5Screate(H5S_SCALAR), H5Sclose);
  Handle a(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!a || H5Awrite(a, type, value) < 0) {
    fail(fmt::format("attribute {}", name));
  }
  close(std::move(a), fmt::format("attribute {}", name));
}

void OutputFile::attribute(hid_t object, const char* name, std::string_view text) const {
  const std::string one(text);
  attribute(object, name, std::span(&one, 1));
}

void OutputFile::attribute(hid_t object, const char* name,
                           std::span<const std::string> texts) const {
  std::vector<const char*> starts;
  for (const std::string& text : texts) {
    starts.push_back(text.c_str());
  }
  put(object, name, text_type(), static_cast<const void*>(starts.data()),
      texts.size() == 1 ? std::nullopt : std::optional(texts.size()));
}

Handle OutputFile::create(hid_t parent, const char* name, hid_t type,
                          const std::vector<Index>& sizes, const Handle& plist,
                          const std::vector<Index>& chunk, const void* data) const {
  H5Pset_obj_track_times(plist, false);  // the same values give the same bytes
  if (!chunk.empty()) {
    const std::vector<hsize_t> dims(chunk.begin(), chunk.end());
    H5Pset_chunk(plist, static_cast<int>(dims.size()), dims.data());
    H5Pset_fletcher32(plist);
  }
  const Handle space = make_space(sizes);  // closing it clears HDF5's error
  Handle out(H5Dcreate2(parent, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT), H5Dclose);
  const bool empty = data == nullptr || std::ranges::count(sizes, 0) > 0;
  if (!out || (!empty && H5Dwrite(out, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)) {
    fail(fmt::format("dataset {}", name));
  }
  return out;
}

void OutputFile::dataset(hid_t parent, const char* name, hid_t type,
                         const std::vector<Index>& sizes, const void* data) const {
  const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  close(create(parent, name, type, sizes, plist, {}, data), fmt::format("dataset {}", name));
}

void OutputFile::checked_dataset(hid_t parent, const char* name, hid_t type,
                                 const std::vector<Index>& sizes, const void* data,
                                 const std::string& sha256) const {
  std::vector<Index> chunk = sizes;
  chunk.front() = std::min(chunk.front(), schema::kMaxChunkTokens);
  const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  Handle out = create(parent, name, type, sizes, plist, chunk, data);
  attribute(out, schema::kDigest, sha256);
  close(std::move(out), fmt::format("dataset {}", name));
}

Handle OutputFile::chunked(hid_t parent, const char* name, DType dtype,
                           const std::vector<Index>& sizes, const std::vector<Index>& chunk,
                           int gzip_level) const {
  const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER);
  if (gzip_level > 0) {
    H5Pset_shuffle(plist);
    H5Pset_deflate(plist, static_cast<unsigned>(gzip_level));
  }
  return create(parent, name, file_type(dtype), sizes, plist, chunk, nullptr);
}

void OutputFile::write_members() const {
  const auto visit = [this](const auto& self, hid_t group) -> void {
    const auto names = link_names(group);
    if (!names) {
      fail("the names of a group");
    }
    for (const std::string& name : *names) {
      const Handle member(H5Oopen(group, name.c_str(), H5P_DEFAULT), H5Oclose);
      if (H5Iget_type(member) == H5I_GROUP) {
        self(self, member);
      }
    }
    if (!names->empty() && names->size() <= kMaxTextsWritten) {
      attribute(group, schema::kMembers, *names);
    }
  };
  const Handle root(H5Gopen2(file_, "/", H5P_DEFAULT), H5Gclose);
  visit(visit, root);
}

void OutputFile::finish() {
  if (H5Fflush(file_, H5F_SCOPE_LOCAL) < 0 || !file_.reset()) {
    fail("the end of the file");
  }
  publish_file(partial_, path_);
}

}  // namespace kvbench::h5

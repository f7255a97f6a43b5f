#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/float16.hpp"
#include "trace/cache_names.hpp"
#include "trace/caches.hpp"
#include "trace/chunk_write.hpp"

namespace kvbench {

using h5::Handle;

std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

struct CacheWriter::Impl {
  std::string path;
  std::string partial;
  Handle file;
  Handle group;

  ~Impl() {
    const h5::Silence silence;
    group.reset();
    if (file.reset() && !partial.empty()) {
      std::remove(partial.c_str());
    }
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw IoError(h5::one_line(
        fmt::format("{}: {} cannot be written ({})", partial, what, h5::last_error())));
  }

  void attribute(hid_t object, const char* name, hid_t type, hid_t memory, const void* value,
                 std::optional<hsize_t> count = std::nullopt) const {
    const Handle space(count ? H5Screate_simple(1, &*count, nullptr) : H5Screate(H5S_SCALAR),
                       H5Sclose);
    const Handle a(H5Acreate2(object, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    if (!a || H5Awrite(a.get(), memory, value) < 0) {
      fail(fmt::format("attribute {}", name));
    }
  }

  // One string, or an array of several.
  void strings(hid_t object, const char* name, const std::vector<std::string>& texts) const {
    const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.get(), H5T_VARIABLE);
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    std::vector<const char*> starts;
    for (const std::string& text : texts) {
      starts.push_back(text.c_str());
    }
    attribute(object, name, type.get(), type.get(), static_cast<const void*>(starts.data()),
              texts.size() == 1 ? std::nullopt : std::optional<hsize_t>(texts.size()));
  }
  void string(hid_t object, const char* name, const std::string& text) const {
    strings(object, name, {text});
  }
  void integer(hid_t object, const char* name, Index value) const {
    attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
  }
  void real(hid_t object, const char* name, double value) const {
    attribute(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
  }

  void dataset(hid_t parent, const char* name, const std::vector<hsize_t>& sizes, hid_t type,
               hid_t memory, const void* values) const {
    const Handle space(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr),
                       H5Sclose);
    const Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(plist.get(), false);  // the same values give the same bytes
    const Handle data(
        H5Dcreate2(parent, name, type, space.get(), H5P_DEFAULT, plist.get(), H5P_DEFAULT),
        H5Dclose);
    const bool empty = std::find(sizes.begin(), sizes.end(), hsize_t{0}) != sizes.end();
    if (!data ||
        (!empty && H5Dwrite(data.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0)) {
      fail(fmt::format("dataset {}", name));
    }
  }

  void matrix(hid_t parent, const char* name, MatrixView m, DType dtype) const {
    const std::vector<hsize_t> sizes = {static_cast<hsize_t>(m.rows), static_cast<hsize_t>(m.cols)};
    const Index count = m.rows * m.cols;
    const bool narrow = dtype == DType::float16 && std::all_of(m.data, m.data + count, [](float x) {
                          return round_to(DType::float16, x) == x;
                        });
    if (!narrow) {
      dataset(parent, name, sizes, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, m.data);
      return;
    }
    std::vector<std::uint16_t> halves(static_cast<std::size_t>(count));
    float_to_half(m.data, halves.data(), count);
    const Handle type = h5::file_type(DType::float16);
    dataset(parent, name, sizes, type.get(), type.get(), halves.data());
  }

  void floats(hid_t parent, const char* name, const std::vector<float>& values) const {
    dataset(parent, name, {values.size()}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values.data());
  }
};

CacheWriter::CacheWriter(std::string path, const CachesMeta& meta)
    : impl_(std::make_unique<Impl>()) {
  const h5::Silence silence;
  Impl& w = *impl_;
  w.path = std::move(path);
  w.partial = w.path + ".tmp";
  w.file = Handle(H5Fcreate(w.partial.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  if (!w.file) {
    w.fail("file");
  }
  const hid_t root = w.file.get();
  w.string(root, caches::kFormatName, caches::kFormat);
  w.integer(root, caches::kVersionName, caches::kVersion);
  w.strings(root, caches::kTraceHash, meta.trace_sha256);
  w.string(root, caches::kProtocol, meta.protocol);
  w.integer(root, caches::kSink, meta.sink);
  w.integer(root, caches::kRecent, meta.recent);
  w.integer(root, caches::kQueries, meta.queries);
  if (!meta.plan.empty()) {
    w.string(root, caches::kPlan, meta.plan);
  }
}

CacheWriter::~CacheWriter() = default;

void CacheWriter::begin_group(const CacheGroup& g) {
  const h5::Silence silence;
  Impl& w = *impl_;
  w.group.reset();  // here: closing clears what HDF5 says of a failure
  w.group = Handle(H5Gcreate2(w.file.get(), g.name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                   H5Gclose);
  if (!w.group) {
    w.fail(fmt::format("group {}", g.name));
  }
  const hid_t group = w.group.get();
  w.string(group, caches::kAlgorithm, g.algorithm);
  w.string(group, caches::kParams, g.params);
  if (g.budget) {
    w.real(group, caches::kBudget, *g.budget);
  }
  w.attribute(group, caches::kSeed, H5T_STD_U64LE, H5T_NATIVE_UINT64, &g.seed);
  w.string(group, caches::kScores, g.scores);
  w.string(group, caches::kScope, g.scope);
}

void CacheWriter::put(const CachePlace& place, const HeadCache& c, DType dtype) {
  const h5::Silence silence;
  Impl& w = *impl_;
  if (!w.group) {
    throw std::logic_error("an entry of caches outside a group");
  }
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.get(), 1);
  const std::string path = caches::entry_path(place.prompt, place.layer, place.kv_head);
  const Handle entry(H5Gcreate2(w.group.get(), path.c_str(), links.get(), H5P_DEFAULT, H5P_DEFAULT),
                     H5Gclose);
  if (!entry) {
    w.fail(path);
  }
  const hid_t at = entry.get();
  if (c.scoring_queries) {
    w.integer(at, caches::kScoringQueries, *c.scoring_queries);
  }
  if (!c.infeasible.empty()) {
    w.string(at, caches::kInfeasible, c.infeasible);
    return;
  }
  w.matrix(at, caches::kKeys, c.k, dtype);
  w.matrix(at, caches::kValues, c.v, dtype);
  if (!c.log_weight.empty()) {
    w.floats(at, caches::kLogWeight, c.log_weight);
  }
  if (!c.token.empty()) {
    w.dataset(at, caches::kToken, {c.token.size()}, H5T_STD_I32LE, H5T_NATIVE_INT32,
              c.token.data());
  }
  if (c.denominator) {
    if (c.denominator->k) {
      w.matrix(at, caches::kKeysDen, *c.denominator->k, dtype);
    }
    if (!c.denominator->log_weight.empty()) {
      w.floats(at, caches::kLogWeightDen, c.denominator->log_weight);
    }
  }
  if (c.aux_bytes) {
    w.integer(at, caches::kAuxBytes, *c.aux_bytes);
  }
  if (c.payload_bytes) {
    w.integer(at, caches::kPayloadBytes, *c.payload_bytes);
  }
  if (c.quantised > 0) {
    w.integer(at, caches::kQuantised, c.quantised);
  }
  if (c.transient_bytes > 0) {
    w.integer(at, caches::kTransientBytes, c.transient_bytes);
  }
  if (c.compress_ms) {
    w.real(at, caches::kCompressMs, *c.compress_ms);
  }
  if (!c.degenerate.empty()) {
    w.string(at, caches::kDegenerate, c.degenerate);
  }
  if (!c.diag.empty()) {
    w.string(at, caches::kDiag, c.diag);
  }
}

void CacheWriter::close() {
  const h5::Silence silence;
  Impl& w = *impl_;
  w.group.reset();
  if (H5Fflush(w.file.get(), H5F_SCOPE_LOCAL) < 0 || !w.file.reset()) {
    w.fail("the end of the file");
  }
  std::error_code failed;
  std::filesystem::rename(w.partial, w.path, failed);
  if (failed) {
    throw IoError(h5::one_line(
        fmt::format("{}: cannot be renamed from {} ({})", w.path, w.partial, failed.message())));
  }
  w.partial.clear();
}

}  // namespace kvbench

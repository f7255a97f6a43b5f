#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/float16.hpp"
#include "trace/caches.hpp"
#include "trace/chunk_codec.hpp"
#include "trace/output_file.hpp"

namespace kvbench {

using h5::Handle;

struct CacheWriter::Impl {
  h5::OutputFile out;
  Handle group;

  explicit Impl(const std::string& path) : out(path) {}
  ~Impl() {
    const h5::Session session;  // silences errors of closing
    group.reset();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void matrix(hid_t parent, const char* name, MatrixView m, DType dtype) const {
    const Index count = m.rows * m.cols;
    const bool narrow = dtype == DType::float16 && std::all_of(m.data, m.data + count, [](float x) {
                          return round_to(DType::float16, x) == x;
                        });
    const DType stored = narrow ? DType::float16 : DType::float32;
    out.dataset(parent, name, h5::file_type(stored), {m.rows, m.cols},
                h5::stored_elements(m.data, count, stored).data());
  }

  // Defaults are not written: no value, an empty text, 0.
  template <class T>
  void attribute(hid_t object, const char* name, const T& x) const {
    if (x != T{}) {
      out.attribute(object, name, x);
    }
  }
  template <class T>
  void list(hid_t parent, const char* name, const std::vector<T>& x) const {
    if (!x.empty()) {
      out.dataset(parent, name, h5::number_type<T>(), {std::ssize(x)}, x.data());
    }
  }
};

CacheWriter::CacheWriter(const std::string& path, const CachesMeta& meta) {
  const h5::Session session;
  impl_ = std::make_unique<Impl>(path);
  const h5::OutputFile& out = impl_->out;
  const Handle& root = out.file();
  out.attribute(root, "format", caches::kFormat);
  out.attribute(root, "version", caches::kVersion);
  out.attribute(root, "trace_sha256", meta.trace_sha256);
  out.attribute(root, "protocol", meta.protocol);
  out.attribute(root, "sink", meta.sink);
  out.attribute(root, "recent", meta.recent);
  out.attribute(root, "queries", meta.queries);
  impl_->attribute(root, "plan", meta.plan);
}

CacheWriter::~CacheWriter() = default;

void CacheWriter::begin_group(const CacheGroup& g) {
  const h5::Session session;
  const h5::OutputFile& out = impl_->out;
  impl_->group = out.group(out.file(), g.name);
  const Handle& group = impl_->group;
  out.attribute(group, "algorithm", g.algorithm);
  out.attribute(group, "params", g.params);
  out.attribute(group, "budget", g.budget);
  out.attribute(group, "seed", g.seed);
  out.attribute(group, "scores", g.scores);
  out.attribute(group, "scope", g.scope);
}

void CacheWriter::put(const CachePlace& place, const HeadCache& c, DType dtype) {
  const h5::Session session;
  const Impl& w = *impl_;
  if (!w.group) {
    throw std::logic_error("an entry of caches outside a group");
  }
  const Handle at = w.out.group(w.group, caches::entry_path(place));
  caches::each_attribute(c, [&](const char* name, const auto& x) { w.attribute(at, name, x); });
  if (c.absent()) {
    return;
  }
  w.matrix(at, "k", c.k, dtype);
  w.matrix(at, "v", c.v, dtype);
  w.list(at, "log_weight", c.log_weight);
  w.list(at, "token", c.token);
  w.list(at, "counted", c.counted);
  if (c.denominator) {
    if (c.denominator->k) {
      w.matrix(at, "k_den", *c.denominator->k, dtype);
    }
    w.list(at, "log_weight_den", c.denominator->log_weight);
  }
}

void CacheWriter::close() {
  const h5::Session session;
  impl_->group.reset();
  impl_->out.finish();
}

}  // namespace kvbench

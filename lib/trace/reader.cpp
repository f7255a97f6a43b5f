#include "trace/reader.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "core/float16.hpp"
#include "trace/dataset.hpp"
#include "trace/digest.hpp"
#include "trace/structure.hpp"
#include "trace/values.hpp"

namespace kvbench {

namespace {

constexpr Index kPartElements = Index{1} << 20;  // of a projection whose checksum is checked

void check_index(const TraceMeta& meta, const char* what, Index got, Index count) {
  if (got < 0 || got >= count) {
    h5::raise<InputError>("{}: {} {} is out of range, expected 0 <= {} < {}", meta.path, what, got,
                          what, count);
  }
}

// Refuses NaN and infinity, which widening keeps apart and fmt names. `place(row, column)`: which
// element it is.
template <class Name>
void check_finite(const h5::Tensor& tensor, const float* x, Index rows, Index cols, Name place) {
  const Index bad = first_non_finite(x, rows * cols);
  if (bad != rows * cols) {
    tensor.where.refuse("{} is {}, expected finite values", place(bad / cols, bad % cols), x[bad]);
  }
}

// Refuses numbers that are not those of the dataset's checksum; `part`: of which, and how it is
// called.
void check_numbers(const h5::Tensor& tensor, std::size_t part, const std::string& name,
                   const float* x, Index count) {
  if (!tensor.digests.empty()) {
    h5::ElementHash hash(tensor.dtype);
    hash.add(x, count);
    h5::check_digest(tensor.where, name, tensor.digests[part], hash);
  }
}

// One head of a dataset and where its [rows, width] values go.
struct HeadRead {
  const h5::Tensor* tensor = nullptr;
  Index head = 0;
  float* out = nullptr;
};

}  // namespace

struct TraceReader::Impl {
  h5::InputFile file;
  h5::Survey survey;
  h5::Object root;
  TraceMeta meta;
  std::mutex rope_lock;
  std::map<std::string, std::weak_ptr<const RopeTables>> ropes;  // by path in the file
  mutable std::mutex projection_lock;
  mutable std::set<const h5::Dataset*> checked_projections;

  Impl(const std::string& path, Require require)
      : file(path, "a trace written as docs/trace_format.md says"),
        survey(h5::survey(file, h5::trace_request())),
        root(h5::open_root(survey, path)),
        meta(h5::read_structure(root, file.bytes(), require)) {}

  const PromptMeta& prompt(std::size_t at) const {
    check_index(meta, "prompt", static_cast<Index>(at), std::ssize(meta.prompts));
    return meta.prompts[at];
  }

  const LayerMeta& layer(std::size_t in, std::size_t at) const {
    const PromptMeta& p = prompt(in);
    check_index(meta, "layer", static_cast<Index>(at), std::ssize(p.layers));
    return p.layers[at];
  }

  // work(group) of a layer. A head that does not fit is the machine's failure, and says which it
  // was.
  template <class Work>
  auto in_layer(std::size_t prompt, const LayerMeta& layer, Index head, const Work& work) const {
    const h5::Object group = h5::layer_group(root, meta.prompts[prompt], layer);
    try {
      return work(group);
    } catch (const std::bad_alloc&) {
      h5::raise<IoError>("{}: {}: not enough memory for head {} of {} tokens", meta.path,
                         group.where.path, head, layer.n);
    }
  }

  h5::Tensor open(const h5::Object& group, const h5::Spec& spec) const {
    return h5::open_tensor(group, spec, meta.dtype, meta.file_bytes);
  }

  void read(std::span<const HeadRead> reads, Index n) const;
  void read_box(const h5::Tensor& tensor, const std::vector<Index>& start,
                const std::vector<Index>& count, float* out) const {
    const h5::Slab one = h5::slab(tensor, start, count, out);
    h5::read_slabs(file, {&one, 1});
  }
  void read_whole(const h5::Tensor& tensor, float* out) const {
    read_box(tensor, std::vector<Index>(tensor.sizes.size(), 0), tensor.sizes, out);
    const Index count =
        std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), Index{1}, std::multiplies<>());
    check_numbers(tensor, 0, "", out, count);
  }
  void check_projection(const h5::Tensor& w) const;
  KvHead read_head(const h5::Object& group, const LayerMeta& layer, Index kv_head) const;
  Matrix read_o_proj(const h5::Object& group, const LayerMeta& layer, Index kv_head) const;
  RopeTables read_rope(const LayerMeta& layer) const;
};

// Heads of a layer of n tokens.
void TraceReader::Impl::read(std::span<const HeadRead> reads, Index n) const {
  std::vector<h5::Slab> slabs;
  for (const HeadRead& r : reads) {
    slabs.push_back(
        h5::slab(*r.tensor, {r.head, 0, 0}, {1, r.tensor->rows(), r.tensor->width()}, r.out));
  }
  h5::read_slabs(file, slabs);
  for (const HeadRead& r : reads) {
    const h5::Tensor& t = *r.tensor;
    check_finite(t, r.out, t.rows(), t.width(), [&](Index row, Index element) {
      return fmt::format("head {}, token {}, element {}", r.head, n - t.rows() + row, element);
    });
    check_numbers(t, static_cast<std::size_t>(r.head), fmt::format("head {}: ", r.head), r.out,
                  t.rows() * t.width());
  }
}

KvHead TraceReader::Impl::read_head(const h5::Object& group, const LayerMeta& layer,
                                    Index kv_head) const {
  KvHead head;
  head.scale = layer.scale;
  head.dtype = meta.dtype;
  head.k = Matrix(layer.n, layer.d);
  head.v = Matrix(layer.n, layer.dv);
  std::vector<h5::Tensor> open_ones;
  open_ones.reserve(3);
  std::vector<HeadRead> reads;
  const auto add = [&](Rows what, Index which, Matrix& to) {
    if (layer.has(what)) {
      reads.push_back(
          {&open_ones.emplace_back(open(group, h5::rows_spec(what))), which, to.data()});
    }
  };
  add(Rows::keys, kv_head, head.k);
  add(Rows::values, kv_head, head.v);
  if (layer.has(Rows::queries)) {
    const h5::Tensor& q = open_ones.emplace_back(open(group, h5::rows_spec(Rows::queries)));
    for (Index i = 0; i < layer.group(); ++i) {
      head.q.emplace_back(layer.nq, layer.d);
      reads.push_back({&q, kv_head * layer.group() + i, head.q.back().data()});
    }
  }
  read(reads, layer.n);
  return head;
}

// All of a projection against its checksum, a part at a time and once: heads read columns of it.
void TraceReader::Impl::check_projection(const h5::Tensor& w) const {
  const std::lock_guard lock(projection_lock);
  if (w.digests.empty() || checked_projections.contains(w.data)) {
    return;
  }
  h5::ElementHash hash(w.dtype);
  const Index rows = std::min(w.rows(), std::max<Index>(1, kPartElements / w.width()));
  Matrix part(rows, w.width());
  for (Index row = 0; row < w.rows(); row += rows) {
    const Index count = std::min(rows, w.rows() - row);
    read_box(w, {row, 0}, {count, w.width()}, part.data());
    hash.add(part.data(), count * w.width());
  }
  h5::check_digest(w.where, "", w.digests.front(), hash);
  checked_projections.insert(w.data);
}

Matrix TraceReader::Impl::read_o_proj(const h5::Object& group, const LayerMeta& layer,
                                      Index kv_head) const {
  const Index width = layer.group() * layer.dv;
  const h5::Tensor w = open(group, h5::kOProj);
  check_projection(w);
  const Index first = kv_head * width;
  Matrix out(layer.hidden, width);
  read_box(w, {0, first}, {out.rows(), width}, out.data());
  check_finite(w, out.data(), out.rows(), width, [&](Index row, Index column) {
    return fmt::format("row {}, column {}", row, first + column);
  });
  return out;
}

RopeTables TraceReader::Impl::read_rope(const LayerMeta& layer) const {
  const h5::Object all = h5::open_group(root, schema::kRope);
  const h5::Object group =
      layer.rope_path == all.where.path ? all : h5::open_group(all, std::to_string(layer.layer));
  RopeTables out;
  out.layout = h5::rope_layout(group);
  const Index pairs = layer.rope_dim / 2;
  for (const auto& [spec, to] : {std::pair{h5::kCos, &out.cos}, {h5::kSin, &out.sin}}) {
    const h5::Tensor table = open(group, spec);
    *to = Matrix(layer.rope_positions, pairs);
    read_whole(table, to->data());
    check_finite(table, to->data(), to->rows(), pairs, [](Index position, Index pair) {
      return fmt::format("position {}, pair {}", position, pair);
    });
  }
  for (Index i = 0; i < out.cos.rows() * pairs; ++i) {
    if (out.cos.data()[i] == 0.0F && out.sin.data()[i] == 0.0F) {
      group.where.refuse("position {}, pair {}: cos and sin are both 0, expected a rotation",
                         i / pairs, i % pairs);
    }
  }
  return out;
}

TraceReader::TraceReader(const std::string& path, Require require)
    : impl_(std::make_unique<Impl>(path, require)) {}

TraceReader::~TraceReader() = default;
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;

const TraceMeta& TraceReader::meta() const {
  return impl_->meta;
}

std::string TraceReader::sha256() const {
  return impl_->file.sha256();
}

bool TraceReader::unchanged() const {
  return impl_->file.unchanged();
}

KvHead TraceReader::read_head(std::size_t prompt, std::size_t layer, Index kv_head) const {
  const LayerMeta& l = impl_->layer(prompt, layer);
  check_index(impl_->meta, "kv_head", kv_head, l.kv_heads);
  return impl_->in_layer(prompt, l, kv_head, [&](const h5::Object& group) {
    return impl_->read_head(group, l, kv_head);
  });
}

Matrix TraceReader::read_rows(std::size_t prompt, std::size_t layer, Rows what, Index head) const {
  const LayerMeta& l = impl_->layer(prompt, layer);
  return impl_->in_layer(prompt, l, head, [&](const h5::Object& group) {
    if (!l.has(what)) {
      group.where.refuse("holds no {}, expected some", name(what));
    }
    const h5::Tensor tensor = impl_->open(group, h5::rows_spec(what));
    check_index(impl_->meta, what == Rows::queries ? "q_head" : "kv_head", head, tensor.heads());
    Matrix out(tensor.rows(), tensor.width());
    const HeadRead one{&tensor, head, out.data()};
    impl_->read({&one, 1}, l.n);
    return out;
  });
}

std::shared_ptr<const RopeTables> TraceReader::read_rope(std::size_t prompt,
                                                         std::size_t layer) const {
  const LayerMeta& l = impl_->layer(prompt, layer);
  if (l.rope_path.empty()) {
    return nullptr;
  }
  const std::lock_guard lock(impl_->rope_lock);
  std::weak_ptr<const RopeTables>& known = impl_->ropes[l.rope_path];
  auto tables = known.lock();
  if (tables == nullptr) {
    known = tables = std::make_shared<const RopeTables>(impl_->read_rope(l));
  }
  return tables;
}

Matrix TraceReader::read_o_proj(std::size_t prompt, std::size_t layer, Index kv_head) const {
  const LayerMeta& l = impl_->layer(prompt, layer);
  check_index(impl_->meta, "kv_head", kv_head, l.kv_heads);
  if (l.hidden == 0) {
    return {};
  }
  return impl_->in_layer(prompt, l, kv_head, [&](const h5::Object& group) {
    return impl_->read_o_proj(group, l, kv_head);
  });
}

std::vector<float> TraceReader::read_residual_norm(std::size_t prompt, std::size_t layer) const {
  const LayerMeta& l = impl_->layer(prompt, layer);
  if (!l.has_residual_norm) {
    return {};
  }
  return impl_->in_layer(prompt, l, 0, [&](const h5::Object& group) {
    const h5::Tensor norms = impl_->open(group, h5::kResidualNorm);
    std::vector<float> out(l.nq);
    impl_->read_whole(norms, out.data());
    const auto bad =
        std::ranges::find_if(out, [](float x) { return !(std::isfinite(x) && x >= 0.0F); });
    if (bad != out.end()) {
      norms.where.refuse("token {} is {}, expected finite numbers >= 0",
                         l.n - l.nq + (bad - out.begin()), *bad);
    }
    return out;
  });
}

std::vector<std::int32_t> TraceReader::read_token_ids(std::size_t prompt) const {
  const PromptMeta& p = impl_->prompt(prompt);
  if (!p.has_token_ids) {
    return {};
  }
  const h5::Object at = h5::open_group(h5::open_group(impl_->root, schema::kPrompts), p.id);
  const h5::Object ids = h5::open_dataset(at, schema::kTokenIds);
  const h5::Dataset& data = h5::described(ids);
  std::vector<std::int64_t> wide(p.n_tokens);
  const h5::Slab all = h5::whole_integers(data, ids.where, wide.data());
  h5::read_slabs(impl_->file, {&all, 1});
  if (const auto digests = h5::digests_of(ids, 1); !digests.empty()) {
    h5::ElementHash hash(DType::float32);
    hash.add_integers(wide, data.element.bytes);
    h5::check_digest(ids.where, "", digests.front(), hash);
  }
  std::vector<std::int32_t> out;
  using Limits = std::numeric_limits<std::int32_t>;
  for (const std::int64_t id : wide) {
    out.push_back(
        static_cast<std::int32_t>(std::clamp<std::int64_t>(id, Limits::min(), Limits::max())));
  }
  return out;
}

}  // namespace kvbench

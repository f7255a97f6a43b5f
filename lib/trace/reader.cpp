#include "trace/reader.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "core/float16.hpp"
#include "trace/chunk_read.hpp"
#include "trace/structure.hpp"

namespace kvbench {

namespace {

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

}  // namespace

struct TraceReader::Impl {
  Path how;
  h5::Handle file;
  h5::Object root;
  TraceMeta meta;
  mutable h5::ReadBuffers buffers;
  mutable std::map<std::string, std::weak_ptr<const RopeTables>> ropes;  // by path in the file

  Impl(const std::string& path, Path h, Require require)
      : how(h), file(h5::open_file(path)), root(h5::open_root(file, path)) {
    meta = h5::read_structure(root, require);
  }
  ~Impl() {
    const h5::Session session;
    root.id.reset();
    file.reset();
  }

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
    const h5::Object group = h5::open_group(root, h5::layer_path(meta.prompts[prompt], layer));
    try {
      return work(group);
    } catch (const std::bad_alloc&) {
      h5::raise<IoError>("{}: {}: not enough memory for head {} of {} tokens", meta.path,
                         group.where.path, head, layer.n);
    }
  }

  h5::Tensor open(const h5::Object& group, const LayerMeta& layer, Rows what) const {
    return h5::open_again(group, h5::rows_spec(what), meta.dtype, h5::rows_sizes(layer, what));
  }

  void read(std::span<const h5::HeadRead> reads, Index n) const;
  void read_whole(const h5::Tensor& tensor, float* out) const {
    h5::read_block(tensor, "values", std::vector<Index>(tensor.sizes.size(), 0), tensor.sizes, out,
                   buffers);
  }
  KvHead read_head(const h5::Object& group, const LayerMeta& layer, Index kv_head) const;
  Matrix read_o_proj(const h5::Object& group, const LayerMeta& layer, Index kv_head) const;
  RopeTables read_rope(const LayerMeta& layer) const;
};

// Heads of a layer of n tokens.
void TraceReader::Impl::read(std::span<const h5::HeadRead> reads, Index n) const {
  std::vector<h5::HeadRead> raw;
  for (const h5::HeadRead& r : reads) {
    const h5::Tensor& t = *r.tensor;
    if (how == Path::automatic && t.raw_chunks) {
      raw.push_back(r);
    } else {
      h5::read_block(t, fmt::format("head {}", r.head), {r.head, 0, 0}, {1, t.rows(), t.width()},
                     r.out, buffers);
    }
  }
  h5::read_raw(raw, buffers);
  for (const h5::HeadRead& r : reads) {
    const h5::Tensor& t = *r.tensor;
    check_finite(t, r.out, t.rows(), t.width(), [&](Index row, Index element) {
      return fmt::format("head {}, token {}, element {}", r.head, n - t.rows() + row, element);
    });
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
  std::vector<h5::HeadRead> reads;
  const auto add = [&](Rows what, Index which, Matrix& to) {
    if (layer.has(what)) {
      reads.push_back({&open_ones.emplace_back(open(group, layer, what)), which, to.data()});
    }
  };
  add(Rows::keys, kv_head, head.k);
  add(Rows::values, kv_head, head.v);
  if (layer.has(Rows::queries)) {
    const h5::Tensor& q = open_ones.emplace_back(open(group, layer, Rows::queries));
    for (Index i = 0; i < layer.group(); ++i) {
      head.q.emplace_back(layer.nq, layer.d);
      reads.push_back({&q, kv_head * layer.group() + i, head.q.back().data()});
    }
  }
  read(reads, layer.n);
  return head;
}

Matrix TraceReader::Impl::read_o_proj(const h5::Object& group, const LayerMeta& layer,
                                      Index kv_head) const {
  const Index width = layer.group() * layer.dv;
  const h5::Tensor w =
      h5::open_again(group, h5::kOProj, meta.dtype, {layer.hidden, layer.q_heads * layer.dv});
  const Index first = kv_head * width;
  Matrix out(layer.hidden, width);
  h5::read_block(w, fmt::format("columns {} to {}", first, first + width - 1), {0, first},
                 {out.rows(), width}, out.data(), buffers);
  check_finite(w, out.data(), out.rows(), width, [&](Index row, Index column) {
    return fmt::format("row {}, column {}", row, first + column);
  });
  return out;
}

RopeTables TraceReader::Impl::read_rope(const LayerMeta& layer) const {
  const h5::Object group = h5::open_group(root, layer.rope_path.substr(1));
  RopeTables out;
  out.layout = h5::rope_layout(group);
  const Index pairs = layer.rope_dim / 2;
  for (const auto& [spec, to] : {std::pair{h5::kCos, &out.cos}, {h5::kSin, &out.sin}}) {
    const h5::Tensor table = h5::open_again(group, spec, meta.dtype, {layer.rope_positions, pairs});
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

TraceReader::TraceReader(const std::string& path, Path how, Require require) {
  const h5::Session session;
  impl_ = std::make_unique<Impl>(path, how, require);
}

TraceReader::~TraceReader() = default;
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;

const TraceMeta& TraceReader::meta() const {
  return impl_->meta;
}

KvHead TraceReader::read_head(std::size_t prompt, std::size_t layer, Index kv_head) const {
  const h5::Session session;
  const LayerMeta& l = impl_->layer(prompt, layer);
  check_index(impl_->meta, "kv_head", kv_head, l.kv_heads);
  return impl_->in_layer(prompt, l, kv_head, [&](const h5::Object& group) {
    return impl_->read_head(group, l, kv_head);
  });
}

Matrix TraceReader::read_rows(std::size_t prompt, std::size_t layer, Rows what, Index head) const {
  const h5::Session session;
  const LayerMeta& l = impl_->layer(prompt, layer);
  return impl_->in_layer(prompt, l, head, [&](const h5::Object& group) {
    if (!l.has(what)) {
      group.where.refuse("holds no {}, expected some", name(what));
    }
    const std::vector<Index> sizes = h5::rows_sizes(l, what);
    check_index(impl_->meta, what == Rows::queries ? "q_head" : "kv_head", head, sizes[0]);
    const h5::Tensor tensor = impl_->open(group, l, what);
    Matrix out(sizes[1], sizes[2]);
    const h5::HeadRead one{&tensor, head, out.data()};
    impl_->read({&one, 1}, l.n);
    return out;
  });
}

std::shared_ptr<const RopeTables> TraceReader::read_rope(std::size_t prompt,
                                                         std::size_t layer) const {
  const h5::Session session;
  const LayerMeta& l = impl_->layer(prompt, layer);
  if (l.rope_path.empty()) {
    return nullptr;
  }
  std::weak_ptr<const RopeTables>& known = impl_->ropes[l.rope_path];
  auto tables = known.lock();
  if (tables == nullptr) {
    known = tables = std::make_shared<const RopeTables>(impl_->read_rope(l));
  }
  return tables;
}

Matrix TraceReader::read_o_proj(std::size_t prompt, std::size_t layer, Index kv_head) const {
  const h5::Session session;
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
  const h5::Session session;
  const LayerMeta& l = impl_->layer(prompt, layer);
  if (!l.has_residual_norm) {
    return {};
  }
  return impl_->in_layer(prompt, l, 0, [&](const h5::Object& group) {
    const h5::Tensor norms = h5::open_again(group, h5::kResidualNorm, impl_->meta.dtype, {l.nq});
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
  const h5::Session session;
  const PromptMeta& p = impl_->prompt(prompt);
  if (!p.has_token_ids) {
    return {};
  }
  const h5::Object ids = h5::open_dataset(
      impl_->root, fmt::format("{}/{}/{}", schema::kPrompts, p.id, schema::kTokenIds));
  std::vector<std::int32_t> out(p.n_tokens);
  if (h5::sizes_of(ids) != std::vector{static_cast<hsize_t>(p.n_tokens)} ||
      H5Dread(ids, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()) < 0) {
    ids.where.refuse("token ids cannot be read ({})", h5::last_error());
  }
  return out;
}

}  // namespace kvbench

#include "trace/reader.hpp"

#include <fmt/format.h>

#include <array>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/float16.hpp"
#include "trace/chunk_read.hpp"
#include "trace/projection.hpp"
#include "trace/rope_tables.hpp"
#include "trace/structure.hpp"

namespace kvbench {

namespace {

[[noreturn]] void refuse_index(const TraceMeta& meta, const char* what, Index got,
                               std::size_t count) {
  throw InputError(h5::one_line(fmt::format("{}: {} {} is out of range, expected 0 <= {} < {}",
                                            meta.path, what, got, what, count)));
}

void check_finite(const Matrix& m, Index first_token, const h5::Tensor& tensor, Index head) {
  const Index count = m.rows() * m.cols();
  const Index bad = first_non_finite(m.data(), count);
  if (bad != count) {
    // Widening kept NaN and infinity apart; fmt names them.
    tensor.where.refuse(fmt::format("head {}, token {}, element {} is {}, expected finite values",
                                    head, first_token + bad / m.cols(), bad % m.cols(),
                                    m.data()[bad]));
  }
}

// The layer's datasets, opened anew; those that it does not store stay empty.
struct OpenLayer {
  std::optional<h5::Tensor> q;
  std::optional<h5::Tensor> k;
  std::optional<h5::Tensor> v;
};

}  // namespace

struct TraceReader::Impl {
  h5::Handle file;
  TraceMeta meta;
  Path how = Path::automatic;
  mutable h5::ReadBuffers buffers;
  mutable std::map<std::string, std::weak_ptr<const RopeTables>> ropes;  // by path in the file

  ~Impl() {
    const h5::Silence silence;
    file.reset();
  }

  void read(std::span<const h5::HeadRead> reads) const {
    std::vector<h5::HeadRead> raw;
    for (const h5::HeadRead& r : reads) {
      if (how == Path::automatic && r.tensor->raw_chunks) {
        raw.push_back(r);
      } else {
        h5::read_through_hdf5(r, buffers);
      }
    }
    h5::read_raw(raw, buffers);
  }

  OpenLayer open(const PromptMeta& prompt, const LayerMeta& layer) const;
  KvHead read_head(const PromptMeta& prompt, const LayerMeta& layer, Index kv_head) const;
  Matrix read_rows(const PromptMeta& prompt, const LayerMeta& layer, Rows what, Index head) const;
  const LayerMeta& find(std::size_t prompt, std::size_t layer) const;

  // A head that does not fit is the machine's failure, and says which it was.
  template <class Read>
  auto guarded(const PromptMeta& prompt, const LayerMeta& layer, Index head,
               const Read& work) const;
};

OpenLayer TraceReader::Impl::open(const PromptMeta& prompt, const LayerMeta& layer) const {
  const h5::Place where{meta.path, h5::layer_path(prompt, layer)};
  const h5::Handle group(H5Oopen(file.get(), where.path.c_str(), H5P_DEFAULT), H5Oclose);
  if (!group) {
    where.refuse(fmt::format("group cannot be opened ({})", h5::last_error()));
  }
  OpenLayer out;
  // The file may have been replaced behind our back; buffers are sized from `layer`.
  const auto open_as = [&](const char* name, Index heads, Index rows, Index width) {
    h5::Tensor t = h5::open_tensor(group.get(), name, meta.dtype, where);
    if (t.heads != heads || t.rows != rows || t.width != width) {
      where.refuse("shapes changed since the file was opened");
    }
    return t;
  };
  if (layer.has(Rows::queries)) {
    out.q = open_as("q", layer.q_heads, layer.nq, layer.d);
  }
  out.k = open_as("k", layer.kv_heads, layer.n, layer.d);
  if (layer.has(Rows::values)) {
    out.v = open_as("v", layer.kv_heads, layer.n, layer.dv);
  }
  return out;
}

KvHead TraceReader::Impl::read_head(const PromptMeta& prompt, const LayerMeta& layer,
                                    Index kv_head) const {
  const OpenLayer open_layer = open(prompt, layer);
  const auto& [q, k, v] = open_layer;
  KvHead head;
  head.scale = layer.scale;
  head.dtype = meta.dtype;
  head.k = Matrix(layer.n, layer.d);
  head.v = Matrix(layer.n, layer.dv);
  const Index group_size = layer.group();
  const Index first_q = kv_head * group_size;
  std::vector<h5::HeadRead> reads{{&*k, kv_head, head.k.data()}};
  if (v) {
    reads.push_back({&*v, kv_head, head.v.data()});
  }
  head.q.reserve(static_cast<std::size_t>(group_size));
  for (Index i = 0; i < group_size; ++i) {
    reads.push_back({&*q, first_q + i, head.q.emplace_back(layer.nq, layer.d).data()});
  }
  read(reads);
  check_finite(head.k, 0, *k, kv_head);
  if (v) {
    check_finite(head.v, 0, *v, kv_head);
  }
  for (Index i = 0; i < group_size; ++i) {
    check_finite(head.q[static_cast<std::size_t>(i)], layer.n - layer.nq, *q, first_q + i);
  }
  return head;
}

Matrix TraceReader::Impl::read_rows(const PromptMeta& prompt, const LayerMeta& layer, Rows what,
                                    Index head) const {
  const OpenLayer open_layer = open(prompt, layer);
  const auto& tensor = what == Rows::queries ? open_layer.q
                       : what == Rows::keys  ? open_layer.k
                                             : open_layer.v;
  Matrix out(tensor->rows, tensor->width);
  const h5::HeadRead one{&*tensor, head, out.data()};
  read({&one, 1});
  check_finite(out, what == Rows::queries ? layer.n - layer.nq : 0, *tensor, head);
  return out;
}

const LayerMeta& TraceReader::Impl::find(std::size_t prompt, std::size_t layer) const {
  if (prompt >= meta.prompts.size()) {
    refuse_index(meta, "prompt", static_cast<Index>(prompt), meta.prompts.size());
  }
  const PromptMeta& p = meta.prompts[prompt];
  if (layer >= p.layers.size()) {
    refuse_index(meta, "layer", static_cast<Index>(layer), p.layers.size());
  }
  return p.layers[layer];
}

template <class Read>
auto TraceReader::Impl::guarded(const PromptMeta& prompt, const LayerMeta& layer, Index head,
                                const Read& work) const {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw IoError(
        h5::one_line(fmt::format("{}: {}: not enough memory for head {} of {} tokens", meta.path,
                                 h5::layer_path(prompt, layer), head, layer.n)));
  }
}

TraceReader::TraceReader(const std::string& path, Path how, Require require)
    : impl_(std::make_unique<Impl>()) {
  const h5::Silence silence;
  impl_->how = how;
  impl_->file = h5::open_file(path);
  impl_->meta = h5::read_structure(impl_->file.get(), path, require);
}

TraceReader::~TraceReader() = default;
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;

const TraceMeta& TraceReader::meta() const {
  return impl_->meta;
}

KvHead TraceReader::read_head(std::size_t prompt, std::size_t layer, Index kv_head) const {
  const h5::Silence silence;
  const LayerMeta& l = impl_->find(prompt, layer);
  const PromptMeta& p = impl_->meta.prompts[prompt];
  if (kv_head < 0 || kv_head >= l.kv_heads) {
    refuse_index(impl_->meta, "kv_head", kv_head, static_cast<std::size_t>(l.kv_heads));
  }
  return impl_->guarded(p, l, kv_head, [&] { return impl_->read_head(p, l, kv_head); });
}

Matrix TraceReader::read_rows(std::size_t prompt, std::size_t layer, Rows what, Index head) const {
  const h5::Silence silence;
  const LayerMeta& l = impl_->find(prompt, layer);
  const PromptMeta& p = impl_->meta.prompts[prompt];
  const Index heads = what == Rows::queries ? l.q_heads : l.kv_heads;
  if (!l.has(what)) {
    throw InputError(h5::one_line(fmt::format("{}: {}: holds no {}, expected some",
                                              impl_->meta.path, h5::layer_path(p, l), name(what))));
  }
  if (head < 0 || head >= heads) {
    refuse_index(impl_->meta, what == Rows::queries ? "q_head" : "kv_head", head,
                 static_cast<std::size_t>(heads));
  }
  return impl_->guarded(p, l, head, [&] { return impl_->read_rows(p, l, what, head); });
}

std::shared_ptr<const RopeTables> TraceReader::read_rope(std::size_t prompt,
                                                         std::size_t layer) const {
  const h5::Silence silence;
  const LayerMeta& l = impl_->find(prompt, layer);
  if (l.rope_path.empty()) {
    return nullptr;
  }
  std::weak_ptr<const RopeTables>& known = impl_->ropes[l.rope_path];
  if (auto tables = known.lock()) {
    return tables;
  }
  auto tables =
      std::make_shared<const RopeTables>(h5::read_rope_tables(impl_->file.get(), impl_->meta, l));
  known = tables;
  return tables;
}

Matrix TraceReader::read_o_proj(std::size_t prompt, std::size_t layer, Index kv_head) const {
  const h5::Silence silence;
  const LayerMeta& l = impl_->find(prompt, layer);
  if (kv_head < 0 || kv_head >= l.kv_heads) {
    refuse_index(impl_->meta, "kv_head", kv_head, static_cast<std::size_t>(l.kv_heads));
  }
  const PromptMeta& p = impl_->meta.prompts[prompt];
  if (l.hidden == 0) {
    return {};
  }
  return impl_->guarded(p, l, kv_head, [&] {
    return h5::read_o_proj(impl_->file.get(), impl_->meta, p, l, kv_head);
  });
}

std::vector<float> TraceReader::read_residual_norm(std::size_t prompt, std::size_t layer) const {
  const h5::Silence silence;
  const LayerMeta& l = impl_->find(prompt, layer);
  if (!l.has_residual_norm) {
    return {};
  }
  return h5::read_residual_norm(impl_->file.get(), impl_->meta, impl_->meta.prompts[prompt], l);
}

std::vector<std::int32_t> TraceReader::read_token_ids(std::size_t prompt) const {
  const h5::Silence silence;
  const TraceMeta& meta = impl_->meta;
  if (prompt >= meta.prompts.size()) {
    refuse_index(meta, "prompt", static_cast<Index>(prompt), meta.prompts.size());
  }
  const PromptMeta& p = meta.prompts[prompt];
  if (!p.has_token_ids) {
    return {};
  }
  const h5::Place where{meta.path,
                        fmt::format("/{}/{}/{}", schema::kPrompts, p.id, schema::kTokenIds)};
  const h5::Handle ids(H5Dopen2(impl_->file.get(), where.path.c_str(), H5P_DEFAULT), H5Dclose);
  const h5::Handle space(ids ? H5Dget_space(ids.get()) : -1, H5Sclose);
  std::vector<std::int32_t> out(static_cast<std::size_t>(p.n_tokens));
  if (!space || H5Sget_simple_extent_npoints(space.get()) != p.n_tokens ||
      H5Dread(ids.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()) < 0) {
    where.refuse(fmt::format("token ids cannot be read ({})", h5::last_error()));
  }
  return out;
}

}  // namespace kvbench

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
#include "trace/checked_read.hpp"
#include "trace/dataset.hpp"
#include "trace/structure.hpp"
#include "trace/structure_extra.hpp"
#include "trace/survey.hpp"

namespace kvbench {

namespace {

void check_index(const TraceMeta& meta, const char* what, Index got, Index count) {
  if (got < 0 || got >= count) {
    h5::raise<InputError>("{}: {} {} is out of range, expected 0 <= {} < {}", meta.path, what, got,
                          what, count);
  }
}

}  // namespace

struct TraceReader::Impl {
  h5::InputFile file;
  h5::Survey survey;
  h5::Object root;
  TraceMeta meta;
  std::mutex rope_lock;
  std::map<std::string, std::weak_ptr<const RopeTables>> ropes;  // by path in the file
  h5::CheckedOnce checked;

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

  // Calls work(group) of a layer. Memory that runs out is an IoError which names the head.
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

  // The layer of a KV head.
  const LayerMeta& layer_of(std::size_t prompt, std::size_t layer, Index kv_head) const {
    const LayerMeta& l = this->layer(prompt, layer);
    check_index(meta, "kv_head", kv_head, l.kv_heads);
    return l;
  }

  h5::Tensor open(const h5::Object& group, const h5::Spec& spec) const {
    return h5::open_tensor(group, spec, meta.dtype, meta.file_bytes);
  }

  KvHead read_head(const h5::Object& group, const LayerMeta& layer, Index kv_head) const;
  Matrix read_o_proj(const h5::Object& group, const LayerMeta& layer, Index kv_head) const;
  RopeTables read_rope(const LayerMeta& layer) const;
  ExtraSegment read_segment(const h5::Object& at, const ExtraSegmentInfo& info,
                            const LayerMeta& layer, Index kv_head) const;
};

KvHead TraceReader::Impl::read_head(const h5::Object& group, const LayerMeta& layer,
                                    Index kv_head) const {
  KvHead head;
  head.scale = layer.scale;
  head.window = layer.window.value_or(0);
  if (!layer.sink_logit.empty()) {
    const auto first = layer.sink_logit.begin() + kv_head * layer.group();
    head.sink_logit.assign(first, first + layer.group());
  }
  head.dtype = meta.dtype;
  head.k = Matrix(layer.n, layer.d);
  head.v = Matrix(layer.n, layer.dv);
  std::vector<h5::Tensor> tensors;
  tensors.reserve(3);
  std::vector<h5::HeadRead> reads;
  const auto add = [&](Rows what, Index which, Matrix& to) {
    if (layer.has(what)) {
      reads.push_back({&tensors.emplace_back(open(group, h5::rows_spec(what))), which, to.data()});
    }
  };
  add(Rows::keys, kv_head, head.k);
  add(Rows::values, kv_head, head.v);
  if (layer.has(Rows::queries)) {
    const h5::Tensor& q = tensors.emplace_back(open(group, h5::rows_spec(Rows::queries)));
    for (Index i = 0; i < layer.group(); ++i) {
      head.q.emplace_back(layer.nq, layer.d);
      reads.push_back({&q, kv_head * layer.group() + i, head.q.back().data()});
    }
  }
  h5::read_heads(file, reads, layer.n);
  return head;
}

Matrix TraceReader::Impl::read_o_proj(const h5::Object& group, const LayerMeta& layer,
                                      Index kv_head) const {
  const Index width = layer.group() * layer.dv;
  const h5::Tensor w = open(group, h5::kOProj);
  checked.check(file, w);
  const Index first = kv_head * width;
  Matrix out(layer.hidden, width);
  h5::read_box(file, w, {0, first}, {out.rows(), width}, out.data());
  h5::check_finite(w, out.data(), out.rows(), width, [&](Index row, Index column) {
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
    h5::read_whole(file, table, to->data());
    h5::check_finite(table, to->data(), to->rows(), pairs, [](Index position, Index pair) {
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

ExtraSegment TraceReader::Impl::read_segment(const h5::Object& at, const ExtraSegmentInfo& info,
                                             const LayerMeta& layer, Index kv_head) const {
  const h5::Tensor k = open(at, h5::kExtraK);
  const h5::Tensor q = open(at, h5::kExtraQ);
  ExtraSegment out;
  out.info = info;
  out.k = Matrix(info.queries, layer.d);
  std::vector<h5::HeadRead> reads{{&k, kv_head, out.k.data()}};
  for (Index g = 0; g < layer.group(); ++g) {
    out.q.emplace_back(info.queries, layer.d);
    reads.push_back({&q, kv_head * layer.group() + g, out.q.back().data()});
  }
  h5::read_heads(file, reads, info.queries, "query");
  const h5::Object positions = h5::open_dataset(at, h5::kPosition);
  Index last = -1;
  for (const std::int64_t position : h5::read_integers(file, positions)) {
    if (position <= last || position > std::numeric_limits<std::int32_t>::max()) {
      positions.where.refuse(
          "query {} is at {}, expected positions from 0 to 2147483647, each "
          "behind the one before",
          out.positions.size(), position);
    }
    out.positions.push_back(last = position);
  }
  if (info.has_residual_norm) {
    out.residual_norm = h5::read_norms(file, open(at, h5::kExtraNorm), "query", 0);
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
  const LayerMeta& l = impl_->layer_of(prompt, layer, kv_head);
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
    const h5::HeadRead one{&tensor, head, out.data()};
    h5::read_heads(impl_->file, {&one, 1}, l.n);
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
  const LayerMeta& l = impl_->layer_of(prompt, layer, kv_head);
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
    return h5::read_norms(impl_->file, norms, "token", l.n - l.nq);
  });
}

ExtraSet TraceReader::read_extra(std::size_t prompt, std::size_t layer, const std::string& name,
                                 Index kv_head) const {
  const LayerMeta& l = impl_->layer_of(prompt, layer, kv_head);
  return impl_->in_layer(prompt, l, kv_head, [&](const h5::Object& group) {
    const ExtraSetInfo* set = find_named(l.extra, name);
    if (set == nullptr) {
      group.where.refuse("holds no extra queries '{}', expected some", name);
    }
    ExtraSet out{name, {}};
    for (const ExtraSegmentInfo& info : set->segments) {
      const h5::Object at = h5::extra_segment_group(group, name, out.segments.size());
      out.segments.push_back(impl_->read_segment(at, info, l, kv_head));
    }
    return out;
  });
}

NamedScores TraceReader::read_scores(std::size_t prompt, std::size_t layer, const std::string& name,
                                     Index kv_head) const {
  const LayerMeta& l = impl_->layer_of(prompt, layer, kv_head);
  return impl_->in_layer(prompt, l, kv_head, [&](const h5::Object& group) {
    if (find_named(l.scores, name) == nullptr) {
      group.where.refuse("holds no scores '{}', expected some", name);
    }
    const h5::Tensor scores = impl_->open(h5::scores_group(group), h5::scores_spec(name));
    impl_->checked.check(impl_->file, scores);
    NamedScores out{name, std::vector<float>(l.n)};
    h5::read_box(impl_->file, scores, {kv_head, 0}, {1, l.n}, out.values.data());
    h5::check_finite(scores, out.values.data(), 1, l.n, [&](Index, Index token) {
      return fmt::format("head {}, token {}", kv_head, token);
    });
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
  const std::vector<std::int64_t> wide = h5::read_integers(impl_->file, ids);
  std::vector<std::int32_t> out;
  using Limits = std::numeric_limits<std::int32_t>;
  for (const std::int64_t id : wide) {
    out.push_back(
        static_cast<std::int32_t>(std::clamp<std::int64_t>(id, Limits::min(), Limits::max())));
  }
  return out;
}

}  // namespace kvbench

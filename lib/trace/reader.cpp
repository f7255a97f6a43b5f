#include "trace/reader.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "trace/canary.hpp"
#include "trace/checked_read.hpp"
#include "trace/structure.hpp"

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
  h5::Structure structure;
  const TraceMeta& meta = structure.meta;
  std::mutex rope_lock;
  std::map<std::string, std::weak_ptr<const RopeTables>> ropes;  // by path in the file
  h5::CheckedOnce checked;

  Impl(const std::string& path, Require require)
      : file(path, "a trace written as docs/trace_format.md says"),
        structure(h5::read_guarded(
            file, [&](const h5::Hdf5Object& root) { return h5::read_structure(root, require); })) {}

  const PromptMeta& prompt(std::size_t at) const {
    check_index(meta, "prompt", static_cast<Index>(at), std::ssize(meta.prompts));
    return meta.prompts[at];
  }

  const LayerMeta& layer(std::size_t in, std::size_t at) const {
    const PromptMeta& p = prompt(in);
    check_index(meta, "layer", static_cast<Index>(at), std::ssize(p.layers));
    return p.layers[at];
  }

  // Calls work(place) of a layer. Memory that runs out is an IoError which names the head.
  template <class Work>
  auto in_layer(std::size_t prompt, const LayerMeta& layer, Index head, const Work& work) const {
    const h5::Place group{meta.path, h5::layer_path(meta.prompts[prompt], layer)};
    try {
      return work(group);
    } catch (const std::bad_alloc&) {
      h5::raise<IoError>("{}: {}: not enough memory for head {} of {} tokens", meta.path,
                         group.path, head, layer.n);
    }
  }

  // The layer of a KV head.
  const LayerMeta& layer_of(std::size_t prompt, std::size_t layer, Index kv_head) const {
    const LayerMeta& l = this->layer(prompt, layer);
    check_index(meta, "kv_head", kv_head, l.kv_heads);
    return l;
  }

  const h5::Tensor& tensor(const h5::Place& group, std::string_view name) const {
    return structure.tensors.at((group / name).path);
  }

  RopeTables read_rope(const LayerMeta& layer) const;
  ExtraSegment read_segment(const h5::Place& at, const ExtraSegmentInfo& info,
                            const LayerMeta& layer, Index kv_head) const;
};

RopeTables TraceReader::Impl::read_rope(const LayerMeta& layer) const {
  const h5::Place group{meta.path, layer.rope_path};
  RopeTables out;
  out.layout = structure.rope_layouts.at(layer.rope_path);
  const Index pairs = layer.rope_dim / 2;
  for (const auto& [spec, to] : {std::pair{h5::kCos, &out.cos}, {h5::kSin, &out.sin}}) {
    const h5::Tensor& table = tensor(group, spec.name);
    *to = Matrix(layer.rope_positions, pairs);
    h5::read_whole(file, table, to->data());
    h5::check_finite(table, to->data(), to->rows(), pairs, [](Index position, Index pair) {
      return fmt::format("position {}, pair {}", position, pair);
    });
  }
  for (Index i = 0; i < out.cos.rows() * pairs; ++i) {
    if (out.cos.data()[i] == 0.0F && out.sin.data()[i] == 0.0F) {
      group.refuse("position {}, pair {}: cos and sin are both 0, expected a rotation", i / pairs,
                   i % pairs);
    }
  }
  return out;
}

ExtraSegment TraceReader::Impl::read_segment(const h5::Place& at, const ExtraSegmentInfo& info,
                                             const LayerMeta& layer, Index kv_head) const {
  const h5::Tensor& k = tensor(at, h5::kExtraK.name);
  const h5::Tensor& q = tensor(at, h5::kExtraQ.name);
  ExtraSegment out;
  out.info = info;
  out.k = Matrix(info.queries, layer.d);
  std::vector<h5::HeadRead> reads{{&k, kv_head, out.k.data()}};
  for (Index g = 0; g < layer.group(); ++g) {
    out.q.emplace_back(info.queries, layer.d);
    reads.push_back({&q, kv_head * layer.group() + g, out.q.back().data()});
  }
  h5::read_heads(file, reads, info.queries, "query");
  const h5::Tensor& positions = tensor(at, h5::kPosition.name);
  Index last = -1;
  for (const std::int64_t position : h5::read_integers(file, positions)) {
    positions.where.expect(
        last < position && position <= std::numeric_limits<std::int32_t>::max(),
        "query {} is at {}, expected positions from 0 to 2147483647, each after the one before",
        out.positions.size(), position);
    out.positions.push_back(last = position);
  }
  if (info.has_residual_norm) {
    out.residual_norm = h5::read_norms(file, tensor(at, h5::kExtraNorm.name), "query", 0);
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
  return impl_->in_layer(prompt, l, kv_head, [&](const h5::Place& group) {
    KvHead head;
    head.scale = l.scale;
    head.window = l.window.value_or(0);
    if (!l.sink_logit.empty()) {
      const auto first = l.sink_logit.begin() + kv_head * l.group();
      head.sink_logit.assign(first, first + l.group());
    }
    head.dtype = impl_->meta.dtype;
    head.k = Matrix(l.n, l.d);
    head.v = Matrix(l.n, l.dv);
    std::vector<h5::HeadRead> reads;
    const auto add = [&](LayerTensor what, Index which, Matrix& to) {
      if (l.has(what)) {
        reads.push_back({&impl_->tensor(group, h5::rows_spec(what).name), which, to.data()});
      }
    };
    add(LayerTensor::keys, kv_head, head.k);
    add(LayerTensor::values, kv_head, head.v);
    const Index group_size = l.has(LayerTensor::queries) ? l.group() : 0;
    for (Index i = 0; i < group_size; ++i) {
      head.q.emplace_back(l.nq, l.d);
      add(LayerTensor::queries, kv_head * group_size + i, head.q.back());
    }
    h5::read_heads(impl_->file, reads, l.n);
    return head;
  });
}

Matrix TraceReader::read_rows(std::size_t prompt, std::size_t layer, LayerTensor what,
                              Index head) const {
  const LayerMeta& l = impl_->layer(prompt, layer);
  return impl_->in_layer(prompt, l, head, [&](const h5::Place& group) {
    group.expect(l.has(what), "holds no {}, expected some", name(what));
    const h5::Tensor& tensor = impl_->tensor(group, h5::rows_spec(what).name);
    check_index(impl_->meta, what == LayerTensor::queries ? "q_head" : "kv_head", head,
                tensor.heads());
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
  return impl_->in_layer(prompt, l, kv_head, [&](const h5::Place& group) {
    const h5::Tensor& w = impl_->tensor(group, h5::kOProj.name);
    impl_->checked.check(impl_->file, w);
    Matrix out(l.hidden, l.group() * l.dv);
    const Index first = kv_head * out.cols();
    h5::read_box(impl_->file, w, {0, first}, {out.rows(), out.cols()}, out.data());
    h5::check_finite(w, out.data(), out.rows(), out.cols(), [&](Index row, Index column) {
      return fmt::format("row {}, column {}", row, first + column);
    });
    return out;
  });
}

std::vector<float> TraceReader::read_residual_norm(std::size_t prompt, std::size_t layer) const {
  const LayerMeta& l = impl_->layer(prompt, layer);
  if (!l.has_residual_norm) {
    return {};
  }
  return impl_->in_layer(prompt, l, 0, [&](const h5::Place& group) {
    const h5::Tensor& norms = impl_->tensor(group, h5::kResidualNorm.name);
    return h5::read_norms(impl_->file, norms, "token", l.n - l.nq);
  });
}

ExtraSet TraceReader::read_extra(std::size_t prompt, std::size_t layer, const std::string& name,
                                 Index kv_head) const {
  const LayerMeta& l = impl_->layer_of(prompt, layer, kv_head);
  return impl_->in_layer(prompt, l, kv_head, [&](const h5::Place& group) {
    const ExtraSetInfo* set = find_named(l.extra, name);
    if (set == nullptr) {
      group.refuse("holds no extra queries '{}', expected some", name);
    }
    ExtraSet out{name, {}};
    for (const ExtraSegmentInfo& info : set->segments) {
      const auto at = group / schema::kExtra / name / std::to_string(out.segments.size());
      out.segments.push_back(impl_->read_segment(at, info, l, kv_head));
    }
    return out;
  });
}

NamedScores TraceReader::read_scores(std::size_t prompt, std::size_t layer, const std::string& name,
                                     Index kv_head) const {
  const LayerMeta& l = impl_->layer_of(prompt, layer, kv_head);
  return impl_->in_layer(prompt, l, kv_head, [&](const h5::Place& group) {
    group.expect(find_named(l.scores, name) != nullptr, "holds no scores '{}', expected some",
                 name);
    const h5::Tensor& scores = impl_->tensor(group / schema::kScores, name);
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
  const auto at = h5::Place{impl_->meta.path, "/"} / schema::kPrompts / p.id;
  const auto wide = h5::read_integers(impl_->file, impl_->tensor(at, schema::kTokenIds));
  std::vector<std::int32_t> out;
  using Limits = std::numeric_limits<std::int32_t>;
  for (const std::int64_t id : wide) {
    out.push_back(
        static_cast<std::int32_t>(std::clamp<std::int64_t>(id, Limits::min(), Limits::max())));
  }
  return out;
}

}  // namespace kvbench

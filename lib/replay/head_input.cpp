#include "replay/head_input.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/error.hpp"
#include "core/value_range.hpp"
#include "replay/clock.hpp"

namespace kvbench {

void check_range(const Plan& plan, const Unit& unit, const KvHead& head) {
  const ValueRange range = value_range(head);
  if (plan.options.precision == Precision::float32 && !fits_float32(range, head.scale, head.d())) {
    throw InputError(fmt::format(
        "{}: prompt {} layer {} KV head {}: keys up to {:.3g}, queries up to {:.3g}, values up to "
        "{:.3g}: their products exceed the range of float32; expected --precision float64",
        plan.trace_names[unit.trace], plan.prompt_meta(unit).id, plan.layer_meta(unit).layer,
        unit.kv_head, range.key, range.query, range.value));
  }
}

namespace {

KvHead head_of(const Plan& plan, const Unit& unit, std::optional<KvHead> kept) {
  KvHead head =
      kept ? std::move(*kept) : plan.reader(unit).read_head(unit.prompt, unit.layer, unit.kv_head);
  head.precision = plan.options.precision;
  return head;
}

}  // namespace

HeadInput::HeadInput(const Plan& plan, const Unit& unit, std::optional<KvHead> head, bool upload)
    : plan_(plan),
      unit_(unit),
      id_{plan.prompt_meta(unit).id, plan.layer_meta(unit).layer, unit.kv_head},
      head_(head_of(plan, unit, std::move(head))),
      device_(upload && plan.open_device ? plan.open_device(head_, plan.scratch_bytes) : nullptr),
      windows_(windows_of(plan.options, plan.layer_meta(unit))),
      book_(head_, backend(), seconds_now) {
  if (plan.reads_rope) {
    rope_ = plan.reader(unit).read_rope(unit.prompt, unit.layer);
  }
  if (plan.reads_o_proj) {
    o_proj_ = plan.reader(unit).read_o_proj(unit.prompt, unit.layer, unit.kv_head);
  }
  const ExtraNames extra = extra_names(plan, unit);
  const TraceReader& reader = plan.reader(unit);
  for (const std::string& name : extra.sets) {
    extra_.push_back(reader.read_extra(unit.prompt, unit.layer, name, unit.kv_head));
  }
  for (const std::string& name : extra.scores) {
    named_scores_.push_back(reader.read_scores(unit.prompt, unit.layer, name, unit.kv_head));
  }
  middle_ = positions_of(windows_.middle);
}

Task HeadInput::task(const Entry& entry) const {
  Task task{.head = head_,
            .tokens = middle_,
            .budget_bytes = {},
            .scoring = windows_.scoring,
            .true_mass = {},
            .rng = Rng(entry.seed, id_, plan_.variant_of(unit_, entry).drawn_as()),
            .backend = backend()};
  if (const auto budget = plan_.budget_of(unit_, entry)) {
    task.budget_bytes = middle_budget(plan_.options, *budget, windows_, head_.pair_bytes());
  }
  task.scores = &book_;
  task.retrieval_heads = plan_.layer_meta(unit_).retrieval_heads;
  task.kv_head = id_.kv_head;
  task.fisher = plan_.layer_meta(unit_).fisher;
  task.sink = windows_.sink.end;
  task.evaluated = {head_.n() - windows_.queries, head_.n()};
  task.rope = rope_.get();
  task.o_proj = o_proj_.rows() > 0 ? &o_proj_ : nullptr;
  task.extra = extra_;
  task.named_scores = named_scores_;
  return task;
}

}  // namespace kvbench

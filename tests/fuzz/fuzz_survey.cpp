// Fuzz target: what the process that surveys a file may answer, to the description of a trace. Any
// bytes give a TraceMeta or an error of one line; no file, no fork.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "core/error.hpp"
#include "input.hpp"
#include "trace/structure.hpp"
#include "trace/survey_data.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvbench;
  constexpr std::uint64_t kFileBytes = std::uint64_t{64} << 20;
  try {
    const h5::Survey survey = h5::decode_survey({bytes, size});
    const h5::Object root = h5::open_root(survey, "fuzz.h5");
    for (const Require require : {Require::all, Require::keys}) {
      const TraceMeta meta = h5::read_structure(root, kFileBytes, require);
      for (const PromptMeta& prompt : meta.prompts) {
        for (const LayerMeta& layer : prompt.layers) {
          const h5::Object group = h5::layer_group(root, prompt, layer);
          if (layer.n != prompt.n_tokens || layer.kv_heads < 1 || layer.d < 1) {
            std::abort();
          }
        }
      }
    }
  } catch (const InputError& e) {
    if (std::string(e.what()).find('\n') != std::string::npos) {
      std::abort();
    }
  } catch (const std::runtime_error&) {  // the answer is not whole
  }
  return 0;
}

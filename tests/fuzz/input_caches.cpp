#include <algorithm>
#include <span>
#include <stdexcept>

#include "input.hpp"
#include "trace/caches.hpp"
#include "trace/input_file.hpp"
#include "trace/survey.hpp"

namespace kvbench::fuzz {

Bytes input_of(const std::string& path) {
  const h5::InputFile file = caches::open(path);
  const Bytes answer = h5::encode_survey(h5::survey(file, caches::request()));
  Bytes out(4 + answer.size() + file.bytes());
  for (std::size_t i = 0; i < 4; ++i) {
    out[i] = static_cast<std::uint8_t>(answer.size() >> 8 * i);
  }
  std::ranges::copy(answer, out.begin() + 4);
  const std::string fault = file.read(0, std::span(out).subspan(4 + answer.size()));
  if (!fault.empty()) {
    throw std::runtime_error(path + ": " + fault);
  }
  return out;
}

}  // namespace kvbench::fuzz

#include "cli/text/curve.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace muster::cli {
namespace {

constexpr int kScaleWidth = 10;  // of the numbers on the left and the line after them

// A grid of dots. (0, 0) is the top left.
class Canvas {
 public:
  Canvas(int width, int height) : width_(width), dots_(width * height) {}

  int width() const { return width_; }
  int height() const { return static_cast<int>(dots_.size()) / width_; }
  void Set(int x, int y) { dots_[y * width_ + x] = true; }
  bool At(int x, int y) const { return dots_[y * width_ + x]; }

 private:
  int width_;
  std::vector<bool> dots_;
};

void AppendUtf8(uint32_t code, std::string& text) {
  text += static_cast<char>(0xe0 | (code >> 12));
  text += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
  text += static_cast<char>(0x80 | (code & 0x3f));
}

// Appends the Braille character for the dots from (x, y) to (x + 1, y + 3).
void AppendBraille(const Canvas& canvas, int x, int y, std::string& text) {
  static constexpr int kBits[4][2] = {{0, 3}, {1, 4}, {2, 5}, {6, 7}};
  uint32_t code = 0;
  for (int row = 0; row < 4; ++row) {
    for (int column = 0; column < 2; ++column) {
      if (canvas.At(x + column, y + row)) code |= 1U << kBits[row][column];
    }
  }
  if (code == 0) {
    text += ' ';
  } else {
    AppendUtf8(0x2800 + code, text);
  }
}

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();
  bool empty() const { return least > greatest; }
  void Add(double value) {
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
};

}  // namespace

Ink InkOfLocale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = absl::AsciiStrToLower(value);
    return absl::StrContains(locale, "utf-8") || absl::StrContains(locale, "utf8") ? Ink::kBraille
                                                                                   : Ink::kAscii;
  }
  return Ink::kAscii;
}

std::string DrawCurve(const v1::MetricSeries& series, CurveSize size, Ink ink) {
  const int characters = size.width - kScaleWidth;
  if (characters < 8 || size.height < 2) return "";
  Range whole;
  int finite = 0;
  for (const double value : series.values()) {
    if (!std::isfinite(value)) continue;
    whole.Add(value);
    ++finite;
  }
  if (finite < 2) return "";
  const int dots_across = ink == Ink::kBraille ? 2 : 1, dots_down = ink == Ink::kBraille ? 4 : 1;
  Canvas canvas(characters * dots_across, size.height * dots_down);
  const int64_t first = series.steps(0);
  const int64_t last = *series.steps().rbegin();
  std::vector<Range> columns(canvas.width());
  for (int i = 0; i < series.values_size(); ++i) {
    if (!std::isfinite(series.values(i))) continue;
    const double along = static_cast<double>(series.steps(i) - first) /
                         static_cast<double>(std::max<int64_t>(1, last - first));
    columns[static_cast<int>(std::lround(along * (canvas.width() - 1)))].Add(series.values(i));
  }
  // The bound avoids a division by zero for a flat curve.
  const double height = std::max(whole.greatest - whole.least, 1e-300);
  auto row_of = [&](double value) {
    const double up = (value - whole.least) / height;
    return static_cast<int>(std::lround((1 - up) * (canvas.height() - 1)));
  };
  int before = -1, row_before = 0;
  for (int x = 0; x < canvas.width(); ++x) {
    const Range& column = columns[x];
    if (column.empty()) continue;
    const int top = row_of(column.greatest), bottom = row_of(column.least);
    // Draws a line from the last column with a point, across the columns without one.
    const int row = before < 0 ? top : std::clamp(row_before, top, bottom);
    for (int between = before + 1; before >= 0 && between < x; ++between) {
      const double part = static_cast<double>(between - before) / (x - before);
      canvas.Set(between, static_cast<int>(std::lround(row_before + part * (row - row_before))));
    }
    for (int y = top; y <= bottom; ++y) canvas.Set(x, y);
    before = x;
    row_before = (top + bottom) / 2;
  }

  std::string text;
  for (int line = 0; line < size.height; ++line) {
    std::string scale;
    if (line == 0) scale = absl::StrFormat("%.4g", whole.greatest);
    if (line == size.height - 1) scale = absl::StrFormat("%.4g", whole.least);
    std::string row = absl::StrFormat("%*s |", kScaleWidth - 2, scale);
    for (int x = 0; x < characters; ++x) {
      if (ink == Ink::kBraille) {
        AppendBraille(canvas, x * dots_across, line * dots_down, row);
      } else {
        row += canvas.At(x, line) ? '*' : ' ';
      }
    }
    row.erase(row.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, row, "\n");
  }
  const std::string from = absl::StrCat(series.name(), ", step ", first), to = absl::StrCat(last);
  const int gap = characters - static_cast<int>(from.size() + to.size());
  absl::StrAppend(&text, std::string(kScaleWidth, ' '), from, std::string(std::max(1, gap), ' '),
                  to, "\n");
  return text;
}

}  // namespace muster::cli

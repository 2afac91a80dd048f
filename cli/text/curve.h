// Curves in a terminal.
#pragma once

#include <string>

#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// How a curve may be drawn: in dots of Braille, eight to a character, where the terminal knows
// Unicode (LC_ALL, LC_CTYPE or LANG says UTF-8), else in stars.
enum class Ink { kBraille, kAscii };
Ink InkOfLocale();

struct CurveSize {
  int width = 78;  // in characters, the scale at the left included
  int height = 8;  // in lines, without the line of steps below
};

// The series with its scale: `height` + 1 lines, each with a line break; "" without two points that
// are finite. Points that are not are left out. A stretch of steps that shares a column is drawn
// from its least to its greatest, so that nothing that stands out is lost.
std::string DrawCurve(const v1::MetricSeries& series, CurveSize size, Ink ink);

}  // namespace muster::cli

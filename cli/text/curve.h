// Draws curves in a terminal.
#pragma once

#include <string>

#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// The characters of a curve: Braille, with eight dots each, if the terminal knows Unicode (LC_ALL,
// LC_CTYPE or LANG says UTF-8), otherwise asterisks.
enum class Ink { kBraille, kAscii };
Ink InkOfLocale();

struct CurveSize {
  int width = 78;  // in characters, including the scale on the left
  int height = 8;  // in lines, without the line of steps below them
};

// Returns the series with its scale: `height` + 1 lines, each with a line break. Returns "" if
// there are fewer than two finite points or too little room. Points that are not finite are left
// out. Steps that share a column are drawn from their least to their greatest value, so that no
// peak is lost.
std::string DrawCurve(const v1::MetricSeries& series, CurveSize size, Ink ink);

}  // namespace muster::cli

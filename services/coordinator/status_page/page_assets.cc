#include "services/coordinator/status_page/page_assets.h"

#include <functional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

// The begin and end of each file in page_bytes.S, which the build generates.
#define MUSTER_PAGE_ASSET(name)          \
  extern "C" const char muster_##name[]; \
  extern "C" const char muster_##name##_end[]
MUSTER_PAGE_ASSET(page_html);
MUSTER_PAGE_ASSET(page_css);
MUSTER_PAGE_ASSET(page_js);
MUSTER_PAGE_ASSET(icon_svg);
MUSTER_PAGE_ASSET(dygraph_js);
MUSTER_PAGE_ASSET(dygraph_css);
#undef MUSTER_PAGE_ASSET

namespace muster {
namespace {

PageAsset Asset(absl::string_view path, absl::string_view content_type, const char* begin,
                const char* end) {
  const absl::string_view content(begin, end - begin);
  const size_t hash = std::hash<std::string_view>()({content.data(), content.size()});
  return {path, content_type, content, absl::StrCat("\"", absl::Hex(hash), "\"")};
}

}  // namespace

const PageAsset* FindPageAsset(absl::string_view path) {
  static constexpr char kScript[] = "text/javascript; charset=utf-8";
  static constexpr char kStyle[] = "text/css; charset=utf-8";
  static const auto* const kAssets = new std::vector<PageAsset>{
      Asset("/", "text/html; charset=utf-8", muster_page_html, muster_page_html_end),
      Asset("/page.css", kStyle, muster_page_css, muster_page_css_end),
      Asset("/page.js", kScript, muster_page_js, muster_page_js_end),
      Asset("/icon.svg", "image/svg+xml", muster_icon_svg, muster_icon_svg_end),
      Asset("/dygraph.js", kScript, muster_dygraph_js, muster_dygraph_js_end),
      Asset("/dygraph.css", kStyle, muster_dygraph_css, muster_dygraph_css_end),
  };
  for (const PageAsset& asset : *kAssets) {
    if (asset.path == path) return &asset;
  }
  return nullptr;
}

}  // namespace muster

// The report of a folder: holds the numbers, keeps kinds apart, needs nothing from anywhere.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "core/error.h"
#include "measure/gnuplot.h"
#include "measure/report_page.h"
#include "measure/svg_chart.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class ReportPage : public ::testing::Test {
 protected:
  ReportPage() { fs::create_directories(folder_); }
  ~ReportPage() override { fs::remove_all(folder_); }
  void save(const std::string& name, const Json& json) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << json.dump();
  }
  const fs::path folder_ = fs::path(::testing::TempDir()) / ("report-" + std::to_string(::getpid()));
};

Json serving_result(const std::string& label, const std::string& date, double throughput) {
  return {{"kind", "end_to_end"},
          {"label", label},
          {"date", date},
          {"failed", 0},
          {"score", throughput},
          {"buckets",
           {{{"name", "4K-8K"},
             {"completed", 1},
             {"failed", 0},
             {"output_throughput", throughput},
             {"mean_ttft_ms", 321.25},
             {"mean_tpot_ms", 7.5}}}},
          {"requests",
           {{{"error", ""}, {"prompt_tokens", 6144}, {"ttft_ms", 321.25}, {"tpot_ms", 7.5}},
            {{"error", "HTTP 500"}, {"prompt_tokens", 1}, {"ttft_ms", 0.0}, {"tpot_ms", nullptr}}}}};
}

TEST_F(ReportPage, HoldsTheNumbersOfEveryKindApart) {
  save("b.json", serving_result("after", "20260102-000000", 61.75));
  save("a.json", serving_result("before", "20260101-000000", 41.5));
  save("profile-1/report.json",
       {{"kind", "profile"},
        {"name", "p1"},
        {"started_unix_seconds", 1},
        {"classes", {{{"name", "prefill attention"}, {"ms", 681.07}, {"wall_percent", 49.0}}}}});
  save("profile-2/report.json",
       {{"kind", "profile"},
        {"name", "p2"},
        {"started_unix_seconds", 2},
        {"classes", {{{"name", "prefill attention"}, {"ms", 238.72}, {"wall_percent", 7.0}}}}});
  save("kernels.json", {{"kind", "kernel"},
                        {"peak", {{"read_gbytes_per_s", 57.0}, {"bf16_tflops", 2.9}}},
                        {"figures",
                         {{{"op", "matmul"},
                           {"variant", "bf16"},
                           {"shape", "4096 x 5120"},
                           {"class", "matrix products"},
                           {"median_us", 812.5},
                           {"gbytes_per_s", 44.25},
                           {"tflops", 1.25}}}}});
  save(
      "context.json",
      {{"kind", "context"},
       {"figures", {{{"context", 4096}, {"prefill_us_per_token", 12.375}, {"decode_ms_per_token", 8.125}}}}});
  save("other.json", {{"kind", "peak"}});
  const ReportSources sources = read_report_sources(folder_);
  ASSERT_EQ(sources.serving.size(), 2U);
  EXPECT_EQ(sources.serving[0].name, "before") << "in the order of their dates";
  EXPECT_EQ(sources.profiles.size(), 2U);
  EXPECT_EQ(sources.skipped, (std::vector<std::string>{"other.json"}));
  const std::string html = report_html(sources);
  for (const char* part : {"41.50", "61.75", "321.25", "7.50", "681.07", "238.72", "49.00", "812.5", "44.2",
                           "12.375", "8.125", "Roofline", "p1", "p2", "before", "after", "other.json"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  const size_t service = html.find("<h2>End to end"), profile = html.find("<h2>Inside profiles"),
               kernel = html.find("<h2>Kernels alone");
  EXPECT_LT(service, profile);
  EXPECT_LT(profile, kernel);
}

TEST_F(ReportPage, NeedsNothingFromAnywhere) {
  save("a.json", serving_result("run", "20260101-000000", 41.5));
  const std::string html = report_html(read_report_sources(folder_));
  for (const char* part : {"http://", "https://", "src=", "href=", "url(", "<script", "@import"})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
}

TEST_F(ReportPage, NamesAreTextAndNotMarkup) {
  save("a.json", serving_result("<b onclick=\"x\">&run", "20260101-000000", 41.5));
  const std::string html = report_html(read_report_sources(folder_));
  EXPECT_EQ(html.find("<b onclick"), std::string::npos);
  EXPECT_NE(html.find("&lt;b onclick=&quot;x&quot;&gt;&amp;run"), std::string::npos);
}

TEST_F(ReportPage, WhatIsVoidIsSaidAboveTheNumbers) {
  Json json = serving_result("run", "20260101-000000", 41.5);
  json["void"] = {"prefix cache: 1 of 1 requests"};
  json["cold"] = true;
  save("a.json", json);
  const std::string html = report_html(read_report_sources(folder_));
  EXPECT_LT(html.find("void: prefix cache"), html.find("41.50"));
  EXPECT_NE(html.find("measured cold"), std::string::npos);
}

TEST_F(ReportPage, CurvesAreOfTheAnsweredRequests) {
  const Json json = serving_result("run", "", 1);
  EXPECT_EQ(request_points(json, "ttft_ms"), (std::vector<std::pair<double, double>>{{6144, 321.25}}));
}

TEST_F(ReportPage, GnuplotIsGivenDataAndQuotedNames) {
  save("a.json", serving_result("it's", "20260101-000000", 41.5));
  const std::string script = gnuplot_script(read_report_sources(folder_), "ttft_ms", "TTFT", "/x/ttft.png");
  EXPECT_NE(script.find("set output '/x/ttft.png'"), std::string::npos);
  EXPECT_NE(script.find("title 'it''s'"), std::string::npos) << script;
  EXPECT_NE(script.find("6144 321.25\ne\n"), std::string::npos) << script;
}

TEST_F(ReportPage, AFileThatCannotBeReadIsLeftOut) {
  Json json = serving_result("run", "20260101-000000", 41.5);
  json["requests"] = {{{"error", 5}, {"prompt_tokens", "many"}}};
  save("a.json", json);
  save("b.json", {1, 2});
  const ReportSources sources = read_report_sources(folder_);
  EXPECT_TRUE(sources.empty());
  EXPECT_EQ(sources.skipped, (std::vector<std::string>{"a.json", "b.json"}));
}

TEST_F(ReportPage, NoFolderIsAnError) { EXPECT_THROW(read_report_sources(folder_ / "none"), Error); }

TEST(SvgChart, LogarithmicAxesLeaveOutWhatTheyCannotShow) {
  const std::string svg =
      points_svg("t", {.title = "x", .scale = AxisScale::kLog}, {.title = "y", .scale = AxisScale::kLog},
                 {{.name = "s", .points = {{0, 1}, {10, 1}, {100, 5}}}});
  size_t circles = 0;
  for (size_t at = svg.find("<circle"); at != svg.npos; at = svg.find("<circle", at + 1)) ++circles;
  EXPECT_EQ(circles, 2U);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(points_svg("t", {.title = "x"}, {.title = "y"}, {}), "");
}

}  // namespace
}  // namespace longspan::measure

// What clients see of the prefix cache.
#include <gtest/gtest.h>

#include "server/server_fixture.h"

namespace longspan::testing {
namespace {

// `size` token ids; equal seeds begin equally.
Json ids(int size, int seed) {
  Json out = Json::array();
  for (int i = 0; i < size; ++i) out.push_back((i * 7919 + seed * 104729) % 4000);
  return out;
}

Json complete(const Json& prompt, const Json& more = Json::object()) {
  Json body = {{"prompt", prompt}, {"max_tokens", 6}, {"temperature", 0}, {"ignore_eos", true}};
  body.update(more);
  const Reply reply = Client(Running::caching().port()).post("/v1/completions", body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  return reply.json();
}

int cached(const Json& answer) { return answer["usage"]["prompt_tokens_details"]["cached_tokens"]; }
std::string text(const Json& answer) { return answer["choices"][0]["text"]; }

// T58, T60: what comes from the cache is counted, and changes no answer.
TEST(PrefixCache, T58_a_prompt_and_its_continuation_reuse_what_is_known) {
  const Json cold = complete(ids(2000, 1));
  EXPECT_EQ(cached(cold), 0);
  const Json warm = complete(ids(2000, 1));
  EXPECT_GT(cached(warm), 1000);
  EXPECT_EQ(text(warm), text(cold));
  Json longer = ids(2000, 1);
  for (const Json& id : ids(500, 2)) longer.push_back(id);
  const Json continued = complete(longer);
  EXPECT_GT(cached(continued), 1000);
  const Json alone = complete(longer, {{"cache_salt", "alone"}});
  EXPECT_EQ(cached(alone), 0);
  EXPECT_EQ(text(continued), text(alone));
}

TEST(PrefixCache, T67_salts_share_nothing) {
  complete(ids(2000, 3), {{"cache_salt", "a"}});
  EXPECT_EQ(cached(complete(ids(2000, 3), {{"cache_salt", "b"}})), 0);
  EXPECT_GT(cached(complete(ids(2000, 3), {{"cache_salt", "a"}})), 0);
}

TEST(PrefixCache, it_can_be_forgotten_and_its_pages_are_not_lost) {
  complete(ids(2000, 4));
  const auto status = [] {
    return Client(Running::caching().port()).request("GET", "/v1/longspan/status").json();
  };
  ASSERT_TRUE(Running::caching().becomes_idle());
  const Json before = status();
  EXPECT_GT(before["prefix_cache"]["lookups"], 0);
  EXPECT_EQ(before["pages"]["free"].get<int>() + before["pages"]["cached"].get<int>(),
            before["pages"]["total"]);
  EXPECT_EQ(Client(Running::caching().port()).request("POST", "/reset_prefix_cache").status, 200);
  EXPECT_EQ(cached(complete(ids(2000, 4))), 0);
}

}  // namespace
}  // namespace longspan::testing

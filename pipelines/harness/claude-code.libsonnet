// Claude Code 2.1.220 as data. Sub-agents are known by a header, compaction by the client's own order to answer in text only; a call
// that offers no tools, or forces one, is an errand of the client (a title, a search).
local gyre = import 'gyre.libsonnet';
local summary = { last_user_contains: 'Respond with TEXT ONLY' };
local helper = { header_present: 'x-claude-code-agent-id' };

{
  name: 'claude-code',
  wire: 'anthropic',
  tool_parser: 'qwen3_coder',
  install: gyre.folder(std.thisFile) + '../../.cache/harnesses',
  options:: [],
  command: ['{install_dir}/bin/claude', '-p', '--output-format', 'stream-json', '--verbose', '--permission-mode', 'bypassPermissions', '--model', '{model}'] + self.options,
  stdin: '{instruction}',
  env: {
    ANTHROPIC_BASE_URL: '{base_url}',
    ANTHROPIC_AUTH_TOKEN: '{key}',
    CLAUDE_CONFIG_DIR: '{home}/.claude',
    IS_SANDBOX: '1',
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    DISABLE_TELEMETRY: '1',
    DISABLE_ERROR_REPORTING: '1',
    DISABLE_AUTOUPDATER: '1',
  },
  deadline_s: 1800,
  role_rules: [
    { role: 'sub-agent-summary' } + helper + summary,
    { role: 'main-summary' } + summary,
    { role: 'side', no_tools: true },
    { role: 'side', forced_tool: true },
    { role: 'sub-agent' } + helper,
  ],
}

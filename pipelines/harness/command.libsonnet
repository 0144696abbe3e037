// Any program as a harness: give its command, e.g. (import 'harness/command.libsonnet') + { command: ['/usr/bin/my-agent', '{instruction}'] }.
// It finds the proxy under the names that most clients read.
{
  name: 'command',
  wire: 'openai_chat',
  tool_parser: 'qwen3_coder',
  command: error 'say what to run: (import "harness/command.libsonnet") + { command: [...] }',
  env: {
    OPENAI_BASE_URL: '{proxy_url}/v1',
    OPENAI_API_BASE: '{proxy_url}/v1',
    OPENAI_API_KEY: '{key}',
    OPENAI_MODEL: '{model}',
    ANTHROPIC_BASE_URL: '{proxy_url}',
    ANTHROPIC_AUTH_TOKEN: '{key}',
    ANTHROPIC_API_KEY: '{key}',
    ANTHROPIC_MODEL: '{model}',
  },
  deadline_s: 600,
}

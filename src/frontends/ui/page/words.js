// SPDX-License-Identifier: Apache-2.0
// The page's words: English stands in the code, t() gives them in the page's language. {name} is filled in.
// Texts of index.html are translated here once. A language is a list like `zh`; tests/page compares it with the texts.
export const zh = {
  "Skip to the message box": "跳到输入框", Conversations: "对话", Views: "视图", Chat: "聊天", Live: "监控", Connecting: "正在连接",
  "Keyboard shortcuts": "键盘快捷键", Settings: "设置", "This page needs JavaScript. The API works without it.": "此页面需要 JavaScript。API 不需要它也能使用。",
  "New chat": "新对话", "Search conversations": "搜索对话", Search: "搜索", Export: "导出", Import: "导入", "Delete all": "全部删除",
  "File of conversations": "对话文件", Model: "模型", "No model is ready": "没有就绪的模型", "Models load when asked": "模型在使用时加载", beside: "对比", "no other": "不对比",
  "Context in use": "已用上下文", Conversation: "对话", "What would you like to ask?": "想问点什么？",
  "Messages stay between this page and your server. Conversations are kept in this browser.": "消息只在此页面和您的服务器之间传送。对话保存在此浏览器中。",
  "Attached files": "附件", "Attach files: text, PDF, pictures": "添加文件：文本、PDF、图片", "Files: text, PDF, pictures": "文件：文本、PDF、图片", Message: "消息", Send: "发送", Stop: "停止",
  sends: "发送", "a new line": "换行", stops: "停止", more: "更多", "API key": "API 密钥", "Kept until this tab is closed.": "保留到此标签页关闭。",
  Preset: "预设", "Save as preset": "存为预设", "Delete preset": "删除预设", "Reset to defaults": "恢复默认值", "Name of the preset": "预设名称",
  Save: "保存", "System message": "系统消息", None: "无", Temperature: "温度", "Max tokens": "最多词元", "Top p": "Top p", "Top k": "Top k",
  "Min p": "Min p", Seed: "随机种子", random: "随机", "More sampling": "更多采样参数", Repetition: "重复惩罚", Presence: "出现惩罚",
  Frequency: "频率惩罚", "Min tokens": "最少词元", "Seconds at most": "最长秒数", "no limit": "不限", Reasoning: "推理",
  off: "关", on: "开", low: "低", medium: "中", high: "高", "Stop words, one a line": "停止词，每行一个",
  "Other fields of a request, a JSON object": "请求的其他字段，JSON 对象", "The list of fields": "字段列表",
  "The fields must be a JSON object.": "字段必须是 JSON 对象。", "{name} is said by the page itself.": "{name} 由页面自行设置。",
  "Structured answers and tools": "结构化回答与工具", "JSON schema of the answer": "回答的 JSON 模式",
  "{} is any JSON object. Empty: text.": "{} 表示任意 JSON 对象。留空：文本。", "Tools, a JSON list as in OpenAI’s API": "工具，JSON 列表，格式同 OpenAI API",
  "The page shows the calls; you write the results.": "页面显示调用，结果由您填写。", Appearance: "外观", automatic: "自动",
  light: "浅色", dark: "深色", Language: "语言", "Live view": "监控视图", Machine: "机器", Models: "模型",
  "Table of models": "模型表", Version: "版本", State: "状态", Requests: "请求", Failed: "失败", Pending: "等待", "Mean time": "平均用时",
  "Load or unload": "加载或卸载", "Send the message": "发送消息", "A new line": "换行",
  "In an empty message box: edit the last question": "输入框为空时：编辑上一个问题", "Stop the answer, or close what is open": "停止回答，或关闭打开的面板",
  "To the message box": "转到输入框", "The conversation above or below": "上一个或下一个对话", "Answer again": "重新回答",
  "Copy the last answer": "复制最后的回答", "Show or hide the conversations": "显示或隐藏对话列表", "Show or hide the settings": "显示或隐藏设置",
  "This list": "本列表", Close: "关闭", "error {n}": "错误 {n}", "text continued": "续写文本", "no chat template: text continued": "没有聊天模板：续写文本",
  "This model has no chat template: it continues the text that you write, and does not answer. Earlier messages and the system message are not read.": "此模型没有聊天模板：它会续写您输入的文本，而不会回答。之前的消息和系统消息不会被读取。",
  "Text to continue": "要续写的文本",
  "Nereid: live": "Nereid：监控", "{n} of {max} tokens": "{n} / {max} 词元", "{n} tokens": "{n} 词元", "{n} tokens/s": "{n} 词元/秒",
  "first after {n} ms": "首词元 {n} 毫秒", "prompt {n} tokens": "提示 {n} 词元", ", {n} cached": "，其中缓存 {n}", "cut at the token limit": "达到词元上限",
  stopped: "已停止", "The model ended its answer at once.": "模型没有给出内容。", "The connection to the server broke.": "与服务器的连接中断。",
  "Remove {name}": "移除 {name}", "At most {n} files can be attached.": "最多可添加 {n} 个文件。", "{name} is larger than {n} MiB.": "{name} 超过 {n} MiB。",
  "{name} is not a text file in UTF-8.": "{name} 不是 UTF-8 文本文件。",
  "{name} is not a picture that this browser can read.": "{name} 不是此浏览器能读取的图片。", "{name} is a picture, and this model takes text alone.": "{name} 是图片，而此模型只接受文本。",
  "The text of {name} could not be read: {why}.": "无法读取 {name} 的文本：{why}。", "The first {n} of {max} pages of {name} are attached.": "已添加 {name} 的前 {n} 页（共 {max} 页）。",
  "it is encrypted": "文件已加密", "it is damaged": "文件已损坏", "it is too large": "文件过大", "it takes too long": "用时过长",
  "it has no text, only pictures of pages": "文件没有文本，只有页面图片", "its fonts do not say which letters they draw": "其字体未说明所绘的字母", "{n} days": "{n} 天", "Statistics are restricted": "统计受限",
  "Statistics are restricted on this server (--http-restricted-api).": "此服务器限制了统计（--http-restricted-api）。", "Statistics: error {n}": "统计：错误 {n}",
  "No connection to the server": "无法连接服务器", "No connection to the server. Trying again.": "无法连接服务器，正在重试。", Ready: "就绪",
  "Latency of the last minute": "最近一分钟的延迟", "Steps of the engine": "引擎步骤", "First token": "首词元", "Between tokens": "词元间隔", Step: "步骤",
  Time: "时间", Count: "次数", Generated: "生成", Prompts: "提示", Running: "运行中", Waiting: "等待中", "KV cache": "KV 缓存", "{n} s ago": "{n} 秒前",
  now: "现在", "{n} steps in {s} s, {k} with prompts, busy {p}": "{s} 秒内 {n} 步，{k} 步含提示，忙 {p}", "Timeline of the engine: {text}": "引擎时间线：{text}",
  generation: "生成", "with prompts": "含提示", "{n} on the GPU": "GPU 占用 {n}", "{n} in memory": "内存占用 {n}", " of {n} reserved": "，预留 {n}",
  "{name} version {n}": "{name} 版本 {n}", "tokens/s": "词元/秒", "{n} in total": "共 {n}", request: "个请求", requests: "个请求", "at most {n}": "最多 {n}",
  "{n} paused": "{n} 个暂停", "{n} of {max} blocks": "{n} / {max} 块", CPU: "CPU", Memory: "内存", "GPU {n}": "GPU {n}", "GPU {n} memory": "GPU {n} 显存",
  "all cores": "所有核心", "{n} of {max}": "{n} / {max}", "{n} of {max} W": "{n} / {max} W", "Unload {name}? Requests to it will be refused.": "卸载 {name}？发给它的请求会被拒绝。",
  Loading: "正在加载", Unloading: "正在卸载", loaded: "已加载", unloaded: "已卸载", "no connection to the server": "无法连接服务器", Unavailable: "不可用", "Not loaded": "未加载", Asleep: "休眠",
  "Models are not loaded or unloaded from here: the server runs with --model-control-mode={mode}.": "此处不能加载或卸载模型：服务器以 --model-control-mode={mode} 运行。",
  Unloaded: "已卸载", Load: "加载", Unload: "卸载", "Metrics are off (--allow-metrics=false), so only the models are shown.": "指标已关闭（--allow-metrics=false），只显示模型。",
  "No language model is loaded.": "没有加载语言模型。", "Nereid {version}, server “{server}”, up for {time}": "Nereid {version}，服务器“{server}”，已运行 {time}",
  Formula: "公式", Code: "代码", Copy: "复制", Copied: "已复制", "Not copied": "未能复制", "Copy the code": "复制代码", done: "已完成", "to do": "待办", Table: "表格",
  "Precise: always the likeliest word": "精确：总取最可能的词", "Lively: more surprises": "活泼：更多变化", "{name} is not JSON: {why}": "{name}不是 JSON：{why}",
  "{name} is not a number.": "{name}不是数字。", "The schema": "模式", "The schema must be a JSON object.": "模式必须是 JSON 对象。", "The list of tools": "工具列表",
  "The tools must be a JSON list.": "工具必须是 JSON 列表。", "The model’s own values": "模型自带的值", "As below": "如下所示",
  "The server does not accept this API key.": "服务器不接受此 API 密钥。", "This server asks for an API key: enter it in the settings.": "此服务器需要 API 密钥：请在设置中输入。",
  "This browser keeps nothing: conversations end with this tab.": "此浏览器不保存数据：关闭标签页后对话即消失。", "This conversation could not be kept: {why}": "对话未能保存：{why}",
  Today: "今天", Yesterday: "昨天", "This week": "本周", "This month": "本月", Older: "更早", "Nothing was found.": "没有找到。", "No conversations yet.": "还没有对话。",
  Untitled: "无标题", "New name": "新名称", "Rename {name}": "重命名 {name}", "Delete {name}": "删除 {name}", "Delete “{name}”? This cannot be undone.": "删除“{name}”？此操作无法撤销。",
  "the file is larger than {n} MiB": "文件超过 {n} MiB", "{n} conversations were imported.": "已导入 {n} 个对话。", "{n} were here already.": "{n} 个已经存在。",
  "1 conversation was imported.": "已导入 1 个对话。", "1 was here already.": "1 个已经存在。",
  "Nothing was imported from {name}: {why}": "未从 {name} 导入任何内容：{why}", "Delete all {n} conversations? This cannot be undone.": "删除全部 {n} 个对话？此操作无法撤销。",
  You: "您", "Result of {name}": "{name} 的结果", "a tool": "工具", Answer: "回答", "Answer of {name}": "{name} 的回答", "{n} characters": "{n} 个字符",
  "Call of {name}": "调用 {name}", "The version before": "上一版本", "The next version": "下一版本", "Go on with this answer": "用此回答继续", Continue: "继续",
  Edit: "编辑", Delete: "删除", "Delete this message and what follows it": "删除此消息及其后的内容", "Send the results": "发送结果", "Send the result": "发送结果",
  "Edit the message": "编辑消息", Cancel: "取消", "Add a model": "添加模型", "Its name at the hub, ORG/NAME[:QUANT]": "模型在 Hub 上的名称，ORG/NAME[:QUANT]", Add: "添加",
  Progress: "进度", "Asking the hub": "正在询问 Hub", "{n} of {max} GB": "{n} / {max} GB", "Delete {name}? Its files go, too.": "删除 {name}？其文件也会被删除。",
};

const root = globalThis.document && document.documentElement; // none in the tests of single modules
const words = root && root.lang === "zh" ? zh : {};

export function t(text, values = {}) {
  const s = words[text] ?? text;
  return s.replace(/\{(\w+)\}/g, (whole, key) => key in values ? `${values[key]}` : whole);
}

if (root && words === zh) {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  for (let n = walk.currentNode; n; n = walk.nextNode()) {
    if (n.nodeType === Node.TEXT_NODE) {
      const s = n.data.trim();
      if (words[s]) n.data = n.data.replace(s, words[s]);
    } else {
      for (const a of ["aria-label", "placeholder", "title"]) {
        const s = n.getAttribute(a);
        if (s && words[s]) n.setAttribute(a, words[s]);
      }
    }
  }
}
if (root) root.classList.add("ready"); // until then a translated page would show English (app.css)

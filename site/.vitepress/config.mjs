import fs from 'node:fs'
import path from 'node:path'
import { defineConfig } from 'vitepress'
import { github } from '../markdown.mjs'
import { address, base, groups, heading, out, pages, root, title, url } from '../repository.mjs'

export default defineConfig({
  title: 'guestwire',
  description: 'A virtual machine gets the network of the namespace it runs in',
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  base,
  srcDir: root,
  srcExclude: fs
    .readdirSync(root)
    .filter((entry) => !['README.md', 'docs', 'examples'].includes(entry))
    .flatMap((entry) => [entry, entry + '/**']),
  outDir: out,
  cacheDir: path.join(root, 'bin/site.cache'),
  rewrites: Object.fromEntries(pages.filter((file) => /\bREADME\.md$/.test(file)).map((file) => [file, file.replace('README', 'index')])),
  cleanUrls: false,
  // The pages lie outside of this folder, so what they import is looked up as if they lay in it.
  vite: {
    plugins: [
      {
        name: 'guestwire',
        enforce: 'pre',
        resolveId(id) {
          return /^vue($|\/)/.test(id) ? this.resolve(id, path.join(root, 'site/package.json'), { skipSelf: true }) : null
        },
      },
    ],
  },
  markdown: {
    anchor: { slugify: heading },
    config: (markdown) => markdown.use(github),
  },
  themeConfig: {
    outline: [2, 3],
    search: { provider: 'local' },
    socialLinks: [{ icon: 'github', link: url }],
    sidebar: groups().map(({ name, pages }) => ({
      text: name,
      collapsed: true,
      items: pages.map((file) => ({ text: title(file), link: address(file) })),
    })),
  },
})
